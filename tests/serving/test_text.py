"""Stop strings however text is split, and token ids to text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.serving.text import StopCutter, TextReader
from tests.serving.parrot import Utf8Stream


def cut_slowly(text: str, stops: list[str]) -> str:
    """The definition: read character by character until a stop string has been completed, then drop it."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


def cut(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    cutter = StopCutter(stops)
    shown = "".join(cutter.push(piece) for piece in pieces)
    return shown + cutter.finish(), cutter.hit


@given(st.data())
def test_cut_is_the_same_for_every_split(data: st.DataObject) -> None:
    text = data.draw(st.text("ab", max_size=14))
    stops = data.draw(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    shown, hit = cut(pieces, stops)
    assert shown == cut_slowly(text, stops)
    assert hit == any(stop in text for stop in stops)


def test_text_is_held_back_only_where_a_stop_string_may_begin() -> None:
    cutter = StopCutter(["\n\nUser:", "END"])
    assert cutter.push("one") == "one"
    assert cutter.push(" two\n") == " two"
    assert cutter.push("three E") == "\nthree "
    assert cutter.push("N") == ""
    assert cutter.push("Z") == "ENZ"
    assert cutter.push("\n\nUser") == ""
    assert not cutter.hit
    assert cutter.push(": more") == ""
    assert cutter.hit
    assert (cutter.push("x"), cutter.finish()) == ("", "")


def test_ids_alone_in_arrays_and_text_as_it_is() -> None:
    reader = TextReader(Utf8Stream)
    parrot = "é🦜".encode()
    assert reader.push(parrot[0]) == ""
    assert reader.push(np.int64(parrot[1])) == "é"
    assert reader.push(np.frombuffer(parrot[2:5], np.uint8)) == ""
    assert reader.push("as text") == "as text"
    assert reader.finish() == "\ufffd"
    assert reader.ids == 5


def test_ids_without_a_decoder() -> None:
    reader = TextReader(None)
    assert reader.push("plain") == "plain"
    with pytest.raises(RequestFailed, match="decoder"):
        reader.push(3)
