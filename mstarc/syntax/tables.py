"""The parse tables of `walk.lark`, worked out beforehand: building them takes longer than checking a model.

`walk.tables` holds them as compressed JSON under the digest of the grammar and of Lark's version. A digest that differs, or no file,
means that the tables are built from the grammar. `python -m mstarc.syntax.tables` writes the file anew; Lark numbers states in another
order each time, so the bytes differ, and a test compares the automata.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

import lark
from lark import Lark
from lark.grammar import Rule
from lark.lexer import TerminalDef

NAME = "walk.tables"


def load_lark() -> Lark:
    """The parser of the grammar, from the stored tables if they are its tables."""
    grammar = grammar_text()
    try:
        stored = files("mstarc.syntax").joinpath(NAME).read_bytes()
    except OSError:
        return build(grammar)
    found = unpacked(stored, digest(grammar))
    return build(grammar) if found is None else restored(found)


def grammar_text() -> str:
    """The text of `walk.lark`."""
    return files("mstarc.syntax").joinpath("walk.lark").read_text(encoding="utf-8")


def digest(grammar: str) -> str:
    """What the tables depend on, in short."""
    return hashlib.sha256(f"{lark.__version__}\n{grammar}".encode()).hexdigest()


def build(grammar: str) -> Lark:
    """The parser, from the grammar itself."""
    return Lark(grammar, start=["header", "decl"], parser="lalr", lexer="basic", propagate_positions=True)


def packed(parser: Lark, key: str) -> bytes:
    """The tables of a parser as bytes."""
    data, memo = parser.memo_serialize([TerminalDef, Rule])
    text = json.dumps({"digest": key, "data": data, "memo": memo}, separators=(",", ":"), sort_keys=True)
    return zlib.compress(text.encode(), 9)


def unpacked(stored: bytes, key: str) -> dict[str, Any] | None:
    """What `packed` wrote; None if it belongs to another grammar or is damaged."""
    try:
        found = json.loads(zlib.decompress(stored))
    except (ValueError, zlib.error):
        return None
    return found if isinstance(found, dict) and found.get("digest") == key else None


def restored(found: dict[str, Any]) -> Lark:
    """The parser of stored tables. JSON makes the numbers that are keys into texts; here they become numbers again."""
    data: dict[str, Any] = found["data"]
    table: dict[str, Any] = data["parser"]["parser"]
    table["states"] = {int(state): row for state, row in table["states"].items()}
    memo = {int(number): item for number, item in found["memo"].items()}
    parser: Lark = Lark._load_from_dict(data, memo)
    return parser


if __name__ == "__main__":
    text = grammar_text()
    Path(str(files("mstarc.syntax").joinpath(NAME))).write_bytes(packed(build(text), digest(text)))
