"""Every shipped spec, as the front end gives it: it verifies, reads back as it is, and hello runs on its real components."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.hello.components import Adder, Counter
from mstarc.interp import interpret
from mstarc.ir.core import Program
from mstarc.ir.text import parse_program, print_program
from mstarc.ir.verify import verify
from tests.interp.component_machine import ComponentMachine

frontend = pytest.importorskip("mstarc.frontend")

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted([*ROOT.glob("specs/*.walk"), *ROOT.glob("examples/*/*.walk")])


def load(path: Path) -> Program:
    program, collector, _ = frontend.load(str(path))
    assert program is not None, [d.message for d in collector.findings()]
    found: Program = program
    return found


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_verifies_and_round_trips(path: Path) -> None:
    program = load(path)
    verify(program)
    text = print_program(program)
    assert repr(parse_program(text)) == repr(program)
    assert print_program(parse_program(text)) == text


def test_hello_emits_exactly_these_events() -> None:
    program = load(ROOT / "examples/hello/hello.walk")
    machine = ComponentMachine({"counter": Counter(), "adder": Adder()}, {"counter": {"limit": 1000}})
    for order in (None, 0, 1, 2, 3):
        out = interpret(program, machine, {"start": 995}, order=order)
        assert [(e.modality, int(e.value)) for e in out.events if e.walk == "count"] == [
            ("tensor", 995),
            ("tensor", 996),
            ("tensor", 997),
            ("tensor", 998),
            ("tensor", 999),
        ]
        assert [(e.modality, int(e.value)) for e in out.events if e.walk == "add"] == [
            ("scalar", 1991),
            ("scalar", 1995),
            ("scalar", 999),
        ]
        assert len(out.events) == 8
        assert out.finish_reason == "stop"
    out = interpret(program, machine, {"start": 1}, params={"max_steps": 3})
    assert (out.emitted("tensor"), out.emitted("scalar"), out.finish_reason) == ([1, 2, 3], [3, 3], "length")
