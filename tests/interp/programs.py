"""Small programs for the tests: IR text in, outcomes out. Every program is verified before it runs."""

from __future__ import annotations

from typing import Any

from mstarc.interp import HashMachine, OpRun, Outcome, interpret
from mstarc.ir.core import Program
from mstarc.ir.text import parse_program
from mstarc.ir.verify import verify


def program(text: str) -> Program:
    """The program of these declarations."""
    parsed = parse_program("mstarc.ir 1\nmodel t\n" + text)
    verify(parsed)
    return parsed


def run(text: str, inputs: dict[str, Any] | None = None, *, externs: Any = None, **options: Any) -> Outcome:
    """One request on the hash machine, in which arithmetic on integers is arithmetic."""
    parsed = program(text)
    return interpret(parsed, HashMachine(parsed, externs=externs), inputs or {}, **options)


def run_all_orders(
    text: str, inputs: dict[str, Any] | None = None, *, orders: int = 12, **options: Any
) -> list[Outcome]:
    """The same request under different interleavings of its arms."""
    return [run(text, inputs, order=order, **options) for order in [None, *range(orders)]]


class RecordingMachine(HashMachine):
    """A hash machine that remembers the calls."""

    def __init__(self, program: Program, **options: Any) -> None:
        super().__init__(program, **options)
        self.calls: list[OpRun] = []

    def invoke(self, run: OpRun) -> tuple[Any, ...]:
        self.calls.append(run)
        return super().invoke(run)

    def args_of(self, op: str) -> list[tuple[Any, ...]]:
        return [call.args for call in self.calls if call.decl.name == op]


def record(text: str, inputs: dict[str, Any] | None = None, **options: Any) -> tuple[RecordingMachine, Outcome]:
    parsed = program(text)
    machine = RecordingMachine(parsed)
    return machine, interpret(parsed, machine, inputs or {}, **options)
