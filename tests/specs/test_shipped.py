"""Every spec in `specs/`: it checks clean, its IR holds and reads back, it stays short, and it compiles to the same bytes anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mstarc.codegen.package import LINES, compile_model
from mstarc.diagnostics.core import Collector
from mstarc.ir.text import parse_program, print_program
from mstarc.ir.verify import verify
from mstarc.passes.transitions import chains_of
from mstarc.plan.link import link
from mstarc.plan.model import NAME
from mstarc.plan.placement import Placement
from mstarc.workspace import load_model

ROOT = Path(__file__).resolve().parents[2]
BUDGETS = {  # lines that are neither blank nor comments
    "ask": 100,
    "bagel": 120,
    "orpheus": 50,
    "pi05": 45,
    "qwen3_omni": 170,
    "vjepa2": 60,
    "vjepa2_ac": 60,
    "whisper": 45,
}
WIDTH = 120
SPECS = sorted(BUDGETS)

DIGESTS = """\
import hashlib, json, sys
from pathlib import Path
from mstarc.codegen.package import compile_model
out = {}
for path in sorted(Path("specs").glob("*.walk")):
    files = compile_model(path, Path("generated") / path.stem).files
    out[path.stem] = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
json.dump(out, sys.stdout)
"""


def spec(name: str) -> Path:
    return ROOT / "specs" / f"{name}.walk"


def test_each_spec_has_a_budget() -> None:
    assert sorted(path.stem for path in (ROOT / "specs").glob("*.walk")) == SPECS


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_checks_clean(name: str) -> None:
    model = load_model(spec(name))
    assert [(d.rule.code, d.message) for d in model.checked.findings] == []
    assert model.program is not None and model.program.model == name
    assert model.binding is not None and model.binding.components


def test_which_walks_follow_each_other_without_the_host() -> None:
    """A chain ends where the host reads a result (a transcript, a thought, the language), and with its request or arm."""
    chains = {}
    for name in SPECS:
        program = load_model(spec(name)).program
        assert program is not None
        chains[name] = [chain.walks for chain in chains_of(program) if len(chain.walks) > 1]
    assert chains == {
        "ask": [("read*?", "hear*?"), ("read*?", "together")],
        "bagel": [("read_text*?", "read_image*?", "write?"), ("note?", "draw?", "write?")],
        "orpheus": [],
        "pi05": [("look", "flow")],
        "qwen3_omni": [("read*?", "listen*?", "look*?", "answer"), ("follow*?", "follow?", "talk?")],
        "vjepa2": [],
        "vjepa2_ac": [],
        "whisper": [("write*?", "write*?")],
    }


@pytest.mark.parametrize("name", SPECS)
def test_its_ir_holds_and_reads_back(name: str) -> None:
    program = load_model(spec(name)).program
    assert program is not None
    verify(program)
    text = print_program(program)
    assert repr(parse_program(text)) == repr(program)
    assert print_program(parse_program(text)) == text


@pytest.mark.parametrize("name", SPECS)
def test_it_stays_in_its_budget(name: str) -> None:
    lines = spec(name).read_text(encoding="utf-8").splitlines()
    code = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert len(code) <= BUDGETS[name]
    assert [line for line in lines if len(line) > WIDTH] == []


@pytest.mark.parametrize("name", SPECS)
def test_it_compiles_to_short_files_and_links(name: str) -> None:
    package = ROOT / "generated" / name
    compiled = compile_model(spec(name), package)
    assert compiled.fault is None and compiled.plan is not None
    report = Collector()
    linked = link(compiled.plan, Placement(), package, report)
    assert [d.message for d in report.findings()] == []
    assert linked is not None and linked.model == name
    assert sorted(compiled.files) == ["__init__.py", "conductor.py", NAME, "worker.py"]
    for file, text in compiled.files.items():
        assert file == NAME or text.count("\n") <= LINES


def test_two_hash_seeds_give_the_same_bytes() -> None:
    found = []
    for seed in ("1", "4242"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        ran = subprocess.run(
            [sys.executable, "-c", DIGESTS], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, ran.stderr
        found.append(json.loads(ran.stdout))
    assert found[0] == found[1]
    assert all(found[0].values())
