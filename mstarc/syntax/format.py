"""The canonical layout of a `.walk` file. Takes its text; gives the text that means the same, with every comment, laid out anew.

Which lines there are: `format_lines.py`; columns within them: `format_columns.py`. Formatting twice is formatting once.
"""

from __future__ import annotations

from mstarc.diagnostics.core import Collector
from mstarc.source import SourceFile
from mstarc.syntax import ast
from mstarc.syntax.format_columns import render
from mstarc.syntax.format_lines import lines_of
from mstarc.syntax.format_tree import comments_of, read_tree
from mstarc.syntax.parser import parse_walk
from mstarc.syntax.tokens import tokenize

WIDTH = 120  # columns of code, as in the rest of the project; comments may go beyond


def format_walk(source: SourceFile, report: Collector, width: int = WIDTH) -> str | None:
    """The text in canonical layout, with `\\n` at the end of each line; None, after a report, if the text does not parse.

    Raises AssertionError if the result would lose or change a word or a comment: a fault of the formatter.
    """
    model = parse_walk(source, report)
    if model is None or not model.complete:
        return None
    return format_model(source, model, width)


def format_model(source: SourceFile, model: ast.Model, width: int = WIDTH) -> str:
    """The text in canonical layout. `model`: what the text parses to, complete. Raises as `format_walk`."""
    text = render(lines_of(read_tree(source, model), width), width)
    _same(source, SourceFile(source.path, text))
    return text


def _same(old: SourceFile, new: SourceFile) -> None:
    words = [[token.text for token in tokenize(source)] for source in (old, new)]
    assert words[0] == words[1], "the formatter changed a word"
    assert comments_of(old) == comments_of(new), "the formatter changed a comment"


__all__ = ["WIDTH", "format_model", "format_walk"]
