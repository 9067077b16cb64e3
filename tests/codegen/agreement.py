"""One random program on the interpreter and as generated code, on one to three ranks and in many orders: what must agree."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mstarc.interp import HashMachine, Outcome, interpret
from mstarc.ir.core import Program, Send
from mstarc.ir.text import parse_program
from mstarc.ir.verify import verify
from mstarc.ir.visit import every_op
from mstarc_runtime.conductor.admission import Needs, dry_run
from tests.codegen.harness import emissions, events_of, linked_of, serving, spread
from tests.interp.random_programs import Generator

STARTS = (3, 17, 404)
CHAINS = 4  # every fourth program calls walks in a row
ORDERS = 10  # arrival orders of each program, on one to three ranks


@cache
def random_program(seed: int) -> Program:
    program = parse_program(Generator(seed, chains=seed % CHAINS == 0).text())
    verify(program)
    return program


def two_ended(program: Program) -> bool:
    """Whether every stream is sent on somewhere: `check` refuses the others (MC411)."""
    sent = {op.stream for walk in program.walks for op in every_op(walk.body) if isinstance(op, Send)}
    return sent == {stream.name for stream in program.streams}


def expected(program: Program, start: int) -> Outcome:
    return interpret(program, HashMachine(program), {"start": start}, seed=start)


async def agree_everywhere(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One random program, from three starts at once, on one to three ranks in many orders."""
    program = random_program(seed)
    wanted = {start: expected(program, start) for start in STARTS}
    one = linked_of(program, folder)
    linked = {1: one, 2: spread(one, 2), 3: spread(one, 3)}
    for ranks, shuffle in ((1, None), *((1 + k % 3, seed * ORDERS + k) for k in range(ORDERS))):
        async with serving(program, linked[ranks], monkeypatch, shuffle) as (engine, tables):
            runs = {start: await engine.submit("r", {"start": start}, {}, seed=start) for start in STARTS}
            for start, run in runs.items():
                what = f"start {start}, {ranks} ranks, shuffle {shuffle}"
                assert await events_of(run) == emissions(wanted[start]), what
                assert run.outcome.causes == dict(wanted[start].causes), what
            for table in tables:
                _check_needs(engine, runs[STARTS[0]], table.peaks)


def _check_needs(engine: Any, run: Any, peaks: dict[str, int]) -> None:
    """What admission reserves is enough for what was written."""
    needs = Needs(dict.fromkeys(peaks, 10**9), frozenset())
    dry_run(run, needs, engine.program)
    for context, length in peaks.items():
        assert needs.peak.get(context, 0) >= length, f"context {context} grew to {length}"
