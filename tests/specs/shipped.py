"""Runs a shipped spec on the hash machine: draws and externs are scripted, calls are recorded, configs are the binding's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mstarc.interp import HashMachine, OpRun, Outcome, SamplerState, interpret
from mstarc.interp.hash_machine import Box, Row
from mstarc.interp.machine import DrawKey
from mstarc.ir.core import Program
from mstarc.workspace import load_model

SPECS = Path(__file__).resolve().parents[2] / "specs"


@cache
def model(name: str) -> tuple[Program, Mapping[str, Any]]:
    """The program of a spec and the numbers of its binding."""
    found = load_model(SPECS / f"{name}.walk")
    assert found.program is not None and found.binding is not None and not found.failed
    return found.program, found.binding.config


class Scripted(HashMachine):
    """A hash machine whose samplers give the ids of a script, and which remembers calls and draws."""

    def __init__(
        self, name: str, draws: Mapping[str, Sequence[int]], externs: Mapping[str, Callable[..., Any]]
    ) -> None:
        program, config = model(name)
        super().__init__(program, config=config, externs=externs)
        self.calls: list[OpRun] = []
        self.states: list[SamplerState] = []
        self._draws: dict[str, Iterator[int]] = {sampler: iter(ids) for sampler, ids in draws.items()}

    def invoke(self, run: OpRun) -> tuple[Any, ...]:
        self.calls.append(run)
        return super().invoke(run)

    def sample(self, logits: Any, sampler: SamplerState, key: DrawKey) -> int:
        own, over = list(sampler.own), list(sampler.over)
        self.states.append(SamplerState(sampler.name, dict(sampler.settings), own, over))
        if sampler.name in self._draws:
            return next(self._draws[sampler.name])
        return super().sample(logits, sampler, key)

    def of(self, op: str) -> list[OpRun]:
        """The calls of `node.op`, in order."""
        return [call for call in self.calls if f"{call.node}.{call.decl.name}" == op]


@dataclass(frozen=True, slots=True)
class Ran:
    machine: Scripted
    outcome: Outcome


def play(
    name: str,
    inputs: Mapping[str, Any],
    *,
    draws: Mapping[str, Sequence[int]] | None = None,
    externs: Mapping[str, Callable[..., Any]] | None = None,
    **options: Any,
) -> Ran:
    """One request. `draws`: sampler -> the ids it gives; others are hashes."""
    machine = Scripted(name, draws or {}, externs or {})
    return Ran(machine, interpret(model(name)[0], machine, inputs, **options))


def ids(count: int, first: int = 1) -> Row:
    """Token ids, counting up."""
    return Row(range(first, first + count))


def box(*shape: int, key: int = 7) -> Box:
    """A tensor of this shape."""
    return Box(key, shape)


def part(kind: str, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(kind=kind, **fields)
