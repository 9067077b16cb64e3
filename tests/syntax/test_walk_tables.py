"""Stored parse tables: they are those of the grammar, and whatever is wrong with the file, the grammar decides."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from lark import Lark, Token, Tree

from mstarc.source import SourceFile
from mstarc.syntax import tables
from mstarc.syntax.automaton import Automaton, Node, Part
from mstarc.syntax.machine import machine
from mstarc.syntax.parser import terminal_of
from mstarc.syntax.tables import build, digest, grammar_text, packed, unpacked
from mstarc.syntax.tokens import segments, tokenize

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted([*ROOT.glob("specs/*.walk"), *ROOT.glob("examples/*/*.walk"), *ROOT.glob("tests/passes/models/*.walk")])


@pytest.fixture
def fresh() -> Iterator[None]:
    """Tables are read anew, before and after."""
    tables.load.cache_clear()
    yield
    tables.load.cache_clear()


def stored() -> bytes:
    return files("mstarc.syntax").joinpath(tables.NAME).read_bytes()


def test_the_stored_tables_are_those_of_the_grammar() -> None:
    """After a change of the grammar: `python -m mstarc.syntax.tables`."""
    assert unpacked(stored()) == build(grammar_text())
    assert len(tables.load().states) > 200


@pytest.mark.parametrize("other", [b"", b"junk", stored()[:-9], packed(build('header: "x"\ndecl: "y"'))])
@pytest.mark.usefixtures("fresh")
def test_other_tables_are_not_used(other: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / tables.NAME).write_bytes(other)
    (tmp_path / "walk.lark").write_text(grammar_text(), encoding="utf-8")
    monkeypatch.setattr(tables, "files", lambda package: tmp_path)
    assert "WALK" in tables.load().states[tables.load().start["decl"]]


@pytest.mark.usefixtures("fresh")
def test_without_the_file_the_grammar_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    due = unpacked(stored())
    monkeypatch.setattr(tables, "NAME", "nothing.tables")
    assert tables.load() == due


def test_another_grammar_has_another_digest() -> None:
    assert digest("a") != digest("b")


# ------------------------------------------------------------------------------------------- the automaton against Lark


def plain(part: Part) -> Any:
    """(rule, start, end, children) of a node, (text, start, end) of a token."""
    if isinstance(part, Node):
        return part.rule, part.start, part.end, [plain(child) for child in part.children]
    return None if part is None else (part.text, part.start, part.end)


def plain_lark(part: Tree[Token] | Token | None) -> Any:
    if isinstance(part, Tree):
        return part.data, part.meta.start_pos, part.meta.end_pos, [plain_lark(child) for child in part.children]
    return None if part is None else (str(part), part.start_pos, part.end_pos)


@pytest.fixture(scope="module")
def lark() -> Lark:
    return Lark(grammar_text(), start=["header", "decl"], parser="lalr", lexer="basic", propagate_positions=True)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_it_makes_the_trees_that_lark_makes(path: Path, lark: Lark) -> None:
    text = path.read_text(encoding="utf-8")
    found = list(segments(tokenize(SourceFile(path.name, text)), len(text.encode())))
    for start, segment in zip(["header", *["decl"] * (len(found) - 1)], found, strict=True):
        ours, theirs = Automaton(start), lark.parse_interactive("", start=start)
        for token in segment.tokens:
            name = terminal_of(ours, machine(), token)
            assert ours.accepts() == theirs.accepts()
            theirs.feed_token(Token(name, token.text, start_pos=token.start, end_pos=token.end))
            assert ours.feed(name, token)
        assert plain(ours.finish()) == plain_lark(theirs.feed_eof())


def test_what_cannot_stand_somewhere_is_refused_as_lark_refuses_it(lark: Lark) -> None:
    """Every terminal after every beginning of one declaration."""
    text = "walk w(x: i64[T]?) -> y: i64 { y = a.b(x[1:], k=2) reads c when x == 1 or not q\n loop l max 3 carry y { stop when y } }"
    (_, segment) = segments(tokenize(SourceFile("t", f"model t\n{text}")), 1000)
    ours, theirs = Automaton("decl"), lark.parse_interactive("", start="decl")
    for token in segment.tokens:
        due = theirs.accepts()
        assert ours.accepts() == due
        for name in {t.name for t in lark.terminals} - due:
            assert not ours.can_shift(name) and not ours.copy().feed(name, token)
        name = terminal_of(ours, machine(), token)
        theirs.feed_token(Token(name, token.text, start_pos=token.start, end_pos=token.end))
        assert ours.feed(name, token)
    assert ours.accepts() == theirs.accepts() == {"$END"}
