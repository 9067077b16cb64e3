"""A mistake in a program is refused, or the program still has one meaning: no mutant hangs, crashes or answers in two ways.

*Refused*: the verifier or a check finds an error that the program before did not have, or code generation does. *Harmless*: the
generated code on one and two ranks, in any order, gives what the interpreter gives.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from pathlib import Path

import pytest

from mstarc.codegen.errors import NotBuilt
from mstarc.codegen.render import render
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Program
from mstarc.ir.errors import VerifyError
from mstarc.ir.text import parse_program
from mstarc.ir.verify import verify
from mstarc.passes.checks import run_checks
from tests.codegen.harness import agrees
from tests.interp.random_programs import Generator
from tests.mutants.kinds import KINDS, mutant

EACH = 8  # mutants of a kind


@functools.cache
def sound_programs() -> tuple[Program, ...]:
    """Random programs without a finding that is an error."""
    found = []
    for seed in range(400):
        program = parse_program(Generator(seed, sound=True).text())
        verify(program)
        if not errors_of(program):
            found.append(program)
    return tuple(found)


def errors_of(program: Program) -> set[str]:
    """Codes of the errors that the checks find."""
    report = Collector()
    run_checks(program, report)
    return {found.rule.code for found in report.findings() if found.rule.severity == "error"}


def refusal(program: Program) -> str:
    """What refuses the program, or ""."""
    try:
        verify(program)
    except VerifyError:
        return "verify"
    if codes := errors_of(program):
        return min(codes)
    try:
        render(program, "x.walk")
    except NotBuilt:
        return "codegen"
    return ""


@pytest.mark.parametrize("name", sorted(KINDS))
async def test_a_mistake_is_refused_or_harmless(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(name)
    programs = list(sound_programs())
    draw.shuffle(programs)
    outcomes: Counter[str] = Counter()
    for program in programs:
        changed = mutant(name, draw, program)
        if changed is None:
            continue
        found = refusal(changed)
        if not found:
            await agrees(changed, {"start": 5}, tmp_path, monkeypatch)
        outcomes[found or "harmless"] += 1
        if outcomes.total() == EACH:
            break
    assert outcomes.total() >= EACH // 2, f"{name}: too few programs have a place for it"
    print(f"{name}: {dict(outcomes)}")


def test_there_are_many_kinds() -> None:
    assert len(KINDS) >= 40
    assert len(sound_programs()) >= 150
