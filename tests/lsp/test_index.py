"""The index and the completions of whole, cut and damaged specs: never an exception, and names lead to where they are declared."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mstarc.lsp.complete import offers
from mstarc.lsp.describe import describe
from mstarc.lsp.index import Index, index
from mstarc.source import SourceFile
from mstarc.workspace import load_model

SPECS = sorted((Path(__file__).resolve().parents[2] / "specs").glob("*.walk"))


def _walked(table: Index, draw: random.Random, number: int) -> None:
    """Ask everything about some places."""
    size = len(table.source.text.encode())
    for offset in [0, size, *(draw.randrange(size + 1) for _ in range(number))]:
        offers(table, offset)
        at = table.word_at(offset)
        symbol = table.resolve(*at) if at is not None else None
        if symbol is not None:
            assert describe(symbol, table, None)
            assert table.source.text.encode()[symbol.start : symbol.end].decode() == symbol.name
            assert symbol.begin <= symbol.start < symbol.end <= max(symbol.stop, symbol.end) <= size


@pytest.mark.parametrize("spec", SPECS, ids=lambda p: p.stem)
def test_damaged_specs(spec: Path) -> None:
    draw = random.Random(spec.stem)
    whole = spec.read_text(encoding="utf-8")
    for _ in range(25):
        start = draw.randrange(len(whole))
        stop = min(len(whole), start + draw.choice([1, 3, 20]))
        filling = draw.choice(
            ["", "{", "}", "(", ")", "=", ".", ",", "->", '"', "walk", "for", "🎵", "\x00", whole[start:stop][::-1]]
        )
        text = draw.choice([whole[:start] + filling + whole[stop:], whole[:start] + filling, whole[start:]])
        _walked(index(SourceFile("x.walk", text)), draw, 8)


@pytest.mark.parametrize("spec", SPECS, ids=lambda p: p.stem)
def test_the_names_of_a_program_are_found(spec: Path) -> None:
    """Every declaration, and every name that a walk or request binds, is a symbol at the place that the compiler gives it."""
    model = load_model(spec)
    assert model.program is not None
    table = index(model.checked.sources[str(spec)])
    program = model.program
    declared = {s.name for s in table.symbols if not s.owner}
    groups = (program.configs, program.params, program.lets, program.externs, program.caches, program.contexts)
    more = (program.samplers, program.nodes, program.streams, program.walks, program.requests)
    assert {d.name for group in (*groups, *more) for d in group} <= declared
    ops = {(s.owner, s.name) for s in table.symbols if s.kind == "op"}
    assert ops == {(node.name, op.name) for node in program.nodes for op in node.ops}
    places = {(s.start, s.end) for s in table.symbols}
    for unit in (*program.walks, *program.requests):
        for value in getattr(unit, "params", ()) or getattr(unit, "inputs", ()):
            assert (value.span.start, value.span.end) in places, (unit.name, value.name)


def test_what_a_word_means_depends_on_where_it_stands() -> None:
    text = "model m\nnode a : stateless { op x(y: i64) -> z: i64 }\nwalk w(x: i64) {\n    x2 = a.x(x)\n    emit a.x(x2) as scalar\n}\n"
    table = index(SourceFile("m.walk", text))

    def kind(part: str) -> tuple[str, str]:
        at = table.word_at(text.index(part) + part.index("x"))
        assert at is not None
        symbol = table.resolve(*at)
        assert symbol is not None
        return symbol.kind, symbol.owner

    assert kind("a.x(x)") == ("op", "a")
    assert kind("x)\n") == ("input", "w")
    assert kind("x2)") == ("value", "w")
    assert kind("x(y") == ("op", "a")
