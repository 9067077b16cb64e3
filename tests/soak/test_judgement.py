"""The soak sees what it looks for: wrong, missing and surplus events, and what is held more than before."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.soak.fleet import Case
from tests.soak.soak import Report, _judge

RIGHT: dict[str, list[Any]] = {"text": [3, 5, 7], "video": [np.ones((2, 2), np.float32)]}
CASE = Case("r", {}, wanted=RIGHT)


@pytest.mark.parametrize(
    ("found", "whole", "words"),
    [
        (RIGHT, True, ""),
        ({"text": [3, 5]}, False, ""),
        ({}, False, ""),
        ({"text": [3, 5], "video": RIGHT["video"]}, True, "2 events of text, 3 are right"),
        ({"text": [3, 6]}, False, "event 1 of text is wrong"),
        ({"text": [3, 5, 7, 9]}, False, "4 events of text"),
        ({"scalar": [1]}, False, "1 events of scalar, 0 are right"),
        ({"video": [np.full((2, 2), 1.01, np.float32)]}, False, "event 0 of video is wrong"),
        ({"video": [np.full((2, 2), 1.0001, np.float32)]}, False, ""),
        ({"video": [np.ones((4,), np.float32)]}, False, "event 0 of video is wrong"),
        ({"video": [np.ones((2, 2), np.int64)]}, False, "event 0 of video is wrong"),
        ({"text": [3.0]}, False, "event 0 of text is wrong"),
    ],
)
def test_differences(found: dict[str, list[Any]], whole: bool, words: str) -> None:
    difference = CASE.difference(found, whole)
    assert words in difference and bool(difference) == bool(words)


def test_what_is_held_more_is_wrong() -> None:
    clean = Report(ends=Counter(ok=3), held={"descriptors": (5, 5), "MB": (100, 120)})
    _judge(clean)
    assert clean.wrong == []
    leaky = Report(ends=Counter(lost=3), held={"descriptors": (5, 6), "MB": (100, 200)})
    _judge(leaky)
    assert leaky.wrong == ["descriptors: 5 before, 6 after", "MB: 100 before, 200 after", "no request has ended well"]
