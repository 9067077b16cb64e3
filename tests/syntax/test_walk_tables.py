"""Stored parse tables: they are those of the grammar, and whatever is wrong with the file, the grammar decides."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import lark
import pytest

from mstarc.syntax import tables
from mstarc.syntax.tables import build, digest, grammar_text, packed, restored, unpacked


def choices(parser: lark.Lark) -> set[str]:
    return set(parser.parse_interactive("", start="decl").choices())


def moves(parser: lark.Lark) -> Any:
    """state -> terminal or rule -> what to do: ("Shift", state) or ("Reduce", rule)."""
    return parser.parser.parser._parse_table  # type: ignore[attr-defined]


def same_moves(a: Any, b: Any) -> int:
    """How many states two automata share, walked side by side from their starts; fails where they part."""
    pairs = [(a.start_states[name], b.start_states[name]) for name in ("header", "decl")]
    seen: dict[int, int] = {}
    while pairs:
        left, right = pairs.pop()
        if seen.setdefault(left, right) != right:
            pytest.fail(f"state {left} is both {seen[left]} and {right}")
        assert a.states[left].keys() == b.states[right].keys()
        for name, (action, target) in a.states[left].items():
            other, there = b.states[right][name]
            assert str(action) == str(other)
            if "Shift" not in str(action):
                assert (target.origin, target.expansion) == (there.origin, there.expansion)
            elif target not in seen:
                pairs.append((target, there))
    return len(seen)


def test_the_stored_tables_are_those_of_the_grammar() -> None:
    """After a change of the grammar: `python -m mstarc.syntax.tables`."""
    grammar = grammar_text()
    stored = unpacked(files("mstarc.syntax").joinpath(tables.NAME).read_bytes(), digest(grammar))
    if stored is None and lark.__version__ != "1.3.1":
        pytest.skip("the stored tables are of another version of Lark; they are not used")
    assert stored is not None
    table, due = moves(restored(stored)), moves(build(grammar))
    assert same_moves(table, due) == len(due.states) == len(table.states) > 200


@pytest.mark.parametrize("stored", [b"", b"junk", packed(build('header: "x"\ndecl: "y"'), "other")])
def test_other_tables_are_not_used(stored: bytes) -> None:
    assert unpacked(stored, digest(grammar_text())) is None


def test_another_grammar_or_version_has_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest("a")
    assert digest("b") != before
    monkeypatch.setattr(lark, "__version__", "0")
    assert digest("a") != before


def test_without_the_file_the_grammar_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "NAME", "nothing.tables")
    assert "WALK" in choices(tables.load_lark())
