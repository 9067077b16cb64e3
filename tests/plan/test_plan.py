"""plan.json: what it holds, that it reads back, and how a plan that cannot be read is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mstarc.codegen.package import compile_model
from mstarc.plan.model import NAME, Plan, PlanError, from_text, read_plan, sha256_of, to_text

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ask() -> Plan:
    plan = compile_model(ROOT / "specs/ask.walk", ROOT / "generated/ask").plan
    assert plan is not None
    return plan


def test_it_reads_back(ask: Plan) -> None:
    text = to_text(ask)
    assert from_text(text) == ask
    assert to_text(from_text(text)) == text
    assert list(json.loads(text)) == sorted(json.loads(text))


def test_expressions_stay_symbolic(ask: Plan) -> None:
    llm = next(node for node in ask.nodes if node.name == "llm")
    read = next(op for op in llm.ops if op.name == "read")
    assert read.results[0].type == "f32[config.vocab]"
    assert read.takes == "dim.T"
    assert {config.name: config.path for config in ask.configs}["vocab"] == "llm.vocab_size"


def test_the_source_map_and_the_loops(ask: Plan) -> None:
    lines = (ROOT / "specs/ask.walk").read_text().splitlines()
    walks = {walk.name: walk for walk in ask.walks}
    for name, walk in walks.items():
        assert lines[walk.line - 1].startswith(f"walk {name}(")
    assert [(loop.label, loop.region) for loop in walks["answer"].loops] == [("speaking", "answer_speaking")]
    assert walks["hear"].contexts == ["said", "sound"]
    assert walks["speak"].externs == ["phonemes"]


def test_paths_are_relative_to_the_package(ask: Plan) -> None:
    assert (ask.spec.path, ask.spec.binding) == ("../../specs/ask.walk", "../../specs/ask.yaml")
    given = [(ROOT / "specs" / name).read_text(encoding="utf-8") for name in ("ask.walk", "ask.yaml")]
    assert ask.spec.digest == sha256_of(*given)


def test_a_digest_knows_where_a_text_ends() -> None:
    assert sha256_of("ab", "c") != sha256_of("a", "bc")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a plan"),
        ("[]", "is not a plan"),
        ('{"format": 7}', "has format 7, this compiler reads 1"),
        ('{"format": 1}', "missing required field"),
    ],
)
def test_what_is_no_plan(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(PlanError, match=says):
        read_plan(tmp_path)


def test_a_folder_without_a_plan(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="holds no generated package"):
        read_plan(tmp_path / "nowhere")
