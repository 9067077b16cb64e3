"""MC013: settings that no request could draw with, by the numbers of the model; what only a request says is left to it."""

from __future__ import annotations

from typing import Any

import pytest

from mstarc.diagnostics.core import Collector
from mstarc.passes.check_samplers import check_samplers
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.sampling.sampler import Settings
from tests.passes.lowered import CACHE, in_walk, program_of

PARAMS = "param warm : float in -2.0..2.0 = 1.0\nparam cold : float in -2.0..-1.0 = -1.5\n"


def told(setting: str) -> list[str]:
    text = in_walk(
        "emit x as tensor", more=CACHE + "context main on lm max 9\n" + PARAMS + f"sampler z {{ {setting} }}\n"
    )
    report = Collector()
    check_samplers(program_of(text), report)
    return [f"{d.rule.code}: {d.message}" for d in report.findings()]


@pytest.mark.parametrize(
    ("name", "bad", "good", "said"),
    [
        ("temperature", -1, 0, "at least 0"),
        ("top_k", -1, 0, "at least 0"),
        ("top_p", 2, 1, "in 0..1"),
        ("top_p", -0.5, 0, "in 0..1"),
        ("repetition_penalty", 0, 0.5, "above 0"),
    ],
)
def test_what_the_runtime_refuses_is_told_before(name: str, bad: Any, good: Any, said: str) -> None:
    assert told(f"{name} = {good}") == [] and Settings(**{name: good})
    assert told(f"{name} = {bad}") == [f"MC013: `{name}` of sampler `z` is {bad}, and must be {said}"]
    with pytest.raises(BadRequest, match=said):
        Settings(**{name: bad})


def test_a_param_is_told_only_if_none_of_its_values_will_do() -> None:
    assert told("temperature = warm") == []
    assert told("temperature = cold") == ["MC013: `temperature` of sampler `z` is cold, and must be at least 0"]
