"""`check_schedule` against the reference interpreter: on random arms over random streams both agree on what can finish."""

from __future__ import annotations

import random

import pytest

from mstarc.diagnostics.core import Collector
from mstarc.interp import Deadlock, ExecutionError, HashMachine, interpret
from mstarc.ir.core import Program
from mstarc.ir.text import parse_program
from mstarc.passes.check_schedule import check_schedule
from mstarc_runtime.abi.chunks import Fixed, LeftContext, Policy, SlidingWindow, least_capacity

POLICIES: tuple[tuple[Policy, str], ...] = (
    (Fixed(1), "fixed(size = 1)"),
    (Fixed(2), "fixed(size = 2) at_end partial"),
    (SlidingWindow(3, 1), "sliding_window(size = 3, stride = 1) at_end drop"),
    (LeftContext(2, 1), "left_context(chunk = 2, left = 1) at_end partial"),
)


def random_program(seed: int) -> str:
    """Two or three arms; each is a chain of walks, and each walk a loop of sends, of `next`, or one `for`."""
    rng = random.Random(seed)
    arms = [f"arm{i}" for i in range(rng.randint(2, 3))]
    steps: dict[str, list[list[str]]] = {arm: [] for arm in arms}
    lines = ["mstarc.ir 1", "model t"]
    for number in range(rng.randint(1, 3)):
        policy, text = rng.choice(POLICIES)
        sender, taker = rng.sample(arms, 2)
        empty = "after_end_empty " if rng.random() < 0.3 else ""
        lines.append(f"stream s{number}: i64[] by {text} {empty}capacity {least_capacity(policy) + rng.randint(0, 2)}")
        for part in range(rng.randint(1, 2)):
            label = f"send{number}_{part}"
            steps[sender].append([f"loop {label} times {rng.randint(1, 5)} do {{ send iter.{label} to s{number} }}"])
        if rng.random() < 0.4:
            steps[taker].append([f"for %0 v: chunk(s{number}, i64[]) in s{number} {{ emit %0 as out_{taker}() }}"])
        else:
            count = rng.randint(1, 4)
            kind = "i64[]" if policy == Fixed(1) else f"chunk(s{number}, i64[])"
            steps[taker].append(
                [f"loop take{number} times {count} do {{ %0 v: {kind} = next s{number}\nemit 1 as out_{taker}() }}"]
            )
    calls = {}
    for arm in arms:
        rng.shuffle(steps[arm])
        calls[arm] = [f"{arm}_{i}" for i in range(len(steps[arm]))]
        for name, body in zip(calls[arm], steps[arm], strict=True):
            lines += [f"walk {name}() {{", *body, "}"]
    lines.append("request r() -> (" + ", ".join(f"out_{arm}?" for arm in arms) + ") {")
    lines.append("together {")
    for arm in arms:
        lines += [f"arm {arm} {{", *(f"call {name}()" for name in calls[arm]), "}"]
    return "\n".join([*lines, "}", "}"]) + "\n"


def verdict(program: Program) -> str:
    """`ok`, or the code that the check reports."""
    report = Collector()
    check_schedule(program, report, sinks_early=True)
    return report.findings()[0].rule.code if report.findings() else "ok"


def outcome(program: Program) -> str:
    """`ok`, `deadlock` or `end` by running it."""
    try:
        interpret(program, HashMachine(program), {})
    except Deadlock:
        return "deadlock"
    except ExecutionError:
        return "end"
    return "ok"


@pytest.mark.parametrize("block", range(8))
def test_both_agree(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        text = random_program(seed)
        program = parse_program(text)
        expected = {"ok": ("ok",), "deadlock": ("MC102", "MC103"), "end": ("MC407",)}[outcome(program)]
        assert verdict(program) in expected, text


def test_the_programs_show_every_outcome() -> None:
    seen = [outcome(parse_program(random_program(seed))) for seed in range(200)]
    assert min(seen.count(kind) for kind in ("ok", "deadlock", "end")) >= 10


def test_without_early_sinks_the_check_is_never_too_lax() -> None:
    for seed in range(200):
        program = parse_program(random_program(seed))
        report = Collector()
        check_schedule(program, report)
        if not report.findings():
            assert outcome(program) == "ok"
