"""Random programs: they verify, they end, they read back as they are, and no answer depends on the order of arms."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mstarc.interp import HashMachine, Outcome, interpret
from mstarc.ir.text import parse_program, print_program
from mstarc.ir.verify import verify
from tests.interp.random_programs import Generator


def view(out: Outcome, arms: int) -> Any:
    """What a client and the next statement can see: each modality in order, with attributes."""
    by_modality = [[(str(e.value), e.attrs, e.walk) for e in out.events if e.modality == f"m{k}"] for k in range(arms)]
    return by_modality, out.causes, out.contexts, out.draws


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_answers_do_not_depend_on_the_order_of_arms(seed: int) -> None:
    generator = Generator(seed)
    program = parse_program(generator.text())
    verify(program)
    assert parse_program(print_program(program)) == program
    views = [
        view(interpret(program, HashMachine(program), {"start": 3}, order=order), generator.arms)
        for order in (None, *range(10))
    ]
    assert all(other == views[0] for other in views)


def test_random_programs_are_not_trivial() -> None:
    """Over fifty seeds: streams carry items, some consumers end early, loops stop and reach their max, chunks have tails."""
    events = discarded = tails = 0
    causes: set[str] = set()
    for seed in range(50):
        program = parse_program(Generator(seed).text())
        out = interpret(program, HashMachine(program), {"start": 3})
        events += len(out.events)
        discarded += len(out.discarded)
        tails += sum(e.attrs.get("tail") is True for e in out.events)
        causes |= set(out.causes.values())
    assert events > 200
    assert discarded > 0
    assert tails > 0
    assert causes == {"stop", "max"}
