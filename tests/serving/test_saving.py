"""`mstarc call -o FILE`: what each kind of file holds, and what is refused before the weights are loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mstarc_runtime.conductor.requests import Event
from mstarc_runtime.errors import BadRequest, RequestFailed
from mstarc_runtime.serving.saving import check_output, save, told


def event(modality: str, value: Any) -> Event:
    return Event(modality, value, {}, "w", 0.0)


EVENTS = [event("video", np.zeros((2, 3), np.float32)), event("video", np.ones((2, 3), np.float32)), event("text", 7)]


def test_arrays(tmp_path: Path) -> None:
    """One alone as it is, several on a new dim 0; by modality in .npz."""
    assert save(tmp_path / "a.npy", EVENTS[:1], b"", 0).endswith("a.npy: video [[0. 0. 0.]\n [0. 0. 0.]]")
    assert np.load(tmp_path / "a.npy").shape == (2, 3)
    save(tmp_path / "b.npy", EVENTS, b"", 0)
    assert np.load(tmp_path / "b.npy").shape == (2, 2, 3)
    save(tmp_path / "c.npz", [*EVENTS, event("scalar", 3)], b"", 0)
    with np.load(tmp_path / "c.npz") as found:
        assert sorted(found) == ["scalar", "video"] and found["scalar"] == 3


def test_everything_as_json(tmp_path: Path) -> None:
    save(tmp_path / "a.json", EVENTS, b"", 0)
    assert [each["value"] for each in json.loads((tmp_path / "a.json").read_text())] == [
        [[0] * 3] * 2,
        [[1] * 3] * 2,
        7,
    ]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    for path, events, message in (
        ("a.npy", [event("text", 7)], "no array came"),
        ("a.npy", [event("video", np.zeros(2)), event("video", np.zeros(3))], "not all of one shape"),
        ("a.wav", [], "no audio came"),
        ("no/a.json", [], "cannot be written"),
    ):
        with pytest.raises(RequestFailed, match=message):
            save(tmp_path / path, events, b"", 1)


@pytest.mark.parametrize(
    ("name", "outputs", "message"),
    [
        ("a.txt", ["video"], r"none of \.wav, \.npy, \.npz, \.json"),
        ("a.wav", ["video"], "gives no audio"),
        ("a.npy", ["text"], r"gives text; write them to \.npz or \.json"),
        ("a.npy", ["scalar", "video"], "gives scalar, video"),
        ("a.npz", ["text", "audio"], "gives no arrays"),
    ],
)
def test_refused_beforehand(name: str, outputs: list[str], message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        check_output(Path(name), "r", outputs)
    assert caught.value.field == "output"


def test_told() -> None:
    assert told(np.float32(0.5)) == "0.5" and told(np.zeros((4, 5), np.float32)) == "float32 [4, 5]"
