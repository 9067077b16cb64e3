"""Text to syntax tree. Takes a source file; gives a model and reports every declaration that does not follow the grammar.

Whatever the text is, nothing here raises: a declaration with an error is reported once and left out, the others are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.source import SourceFile, Span
from mstarc.syntax import ast
from mstarc.syntax.automaton import Automaton, Node
from mstarc.syntax.build import DEEPEST, Builder, NumberTooLarge, TooDeep
from mstarc.syntax.explain import Found, explain
from mstarc.syntax.machine import Machine, machine
from mstarc.syntax.tokens import Segment, Token, segments, tokenize, unclosed

BRACKETS = 40  # deepest nesting of brackets
STACK = 2000  # symbols on the parser's stack; a text within the limits of depth needs a few hundred


def parse_walk(source: SourceFile, collector: Collector) -> ast.Model | None:
    """The model of a file, without the declarations that could not be parsed; None if the file does not begin with `model NAME`.

    Reports MC010 syntax-error and MC011 reserved-word, at most one of them a declaration.
    """
    return _Parser(source, collector).model()


class _Parser:
    def __init__(self, source: SourceFile, collector: Collector) -> None:
        self._source = source
        self._report = collector
        self._builder = Builder(source)
        self._size = len(source.text.encode("utf-8"))

    def model(self) -> ast.Model | None:
        header, *rest = segments(tokenize(self._source), self._size)
        name = self._header(header)
        parsed = [(segment, self._decl(segment)) for segment in rest]
        lost = frozenset(t.text for segment, decl in parsed if decl is None for t in segment.tokens if t.kind == "word")
        if name is None:
            return None
        whole = Span(self._source.path, header.tokens[0].start, self._size)
        return ast.Model(name, tuple(decl for _, decl in parsed if decl is not None), lost, whole)

    def _header(self, segment: Segment) -> ast.Name | None:
        tokens = segment.tokens
        if not tokens or tokens[0].text != "model":
            message = (
                "the file is empty" if not tokens and segment.last else "the file does not begin with `model NAME`"
            )
            at = self._at(tokens[0]) if tokens else Span(self._source.path, 0, min(1, self._size))
            self._report.report(rules.MC010, message, at, help="begin with `model` and the model's name")
            return None
        tree = self._tree(segment, "header")
        if tree is None:
            return None
        name = tree.children[0]
        assert isinstance(name, Token)
        return ast.Name(name.text, self._at(name))

    def _decl(self, segment: Segment) -> ast.Decl | None:
        tree = self._tree(segment, "decl")
        if tree is None:
            return None
        try:
            return self._builder.decl(tree)
        except TooDeep as error:
            self._too_deep(error.span, DEEPEST)
        except NumberTooLarge as error:
            self._report.report(rules.MC010, "this number is too large", error.span, "it does not fit 64 bits")
        return None

    # ----------------------------------------------------------------------------------------------------------- parsing

    def _tree(self, segment: Segment, start: str) -> Node | None:
        if not self._lexed(segment.tokens):
            return None
        parser, words = Automaton(start), machine()
        for index, token in enumerate(segment.tokens):
            if parser.depth > STACK:
                self._too_deep(self._at(token), DEEPEST)
                return None
            if not parser.feed(terminal_of(parser, words, token), token):
                explain(Found(self._source, segment, index), _fed(start, segment.tokens[:index]), self._report)
                return None
        result = parser.finish()
        if result is None:
            explain(Found(self._source, segment, len(segment.tokens)), parser, self._report)
        return result

    def _lexed(self, tokens: tuple[Token, ...]) -> bool:
        """Whether the tokens are tokens of the language; reports the first that is not."""
        _, deepest = unclosed(tokens)
        if deepest > BRACKETS:
            self._too_deep(self._at(tokens[0]), BRACKETS)
            return False
        for before, token in zip((None, *tokens), tokens, strict=False):
            if token.kind == "bad":
                message = f"the character {_shown(token.text)} has no meaning here"
                self._report.report(rules.MC010, message, self._at(token), help=_MEANT.get(token.text))
                return False
            if token.kind == "open":
                message = "this text does not end on its line"
                self._report.report(rules.MC010, message, self._at(token), help='close it with `"`')
                return False
            if before is not None and before.kind == "number" and token.kind == "word" and before.end == token.start:
                message = f"the number {before.text} runs into `{token.text}`"
                note = "numbers are decimal and have no units: the name of a parameter carries its unit"
                at = self._at(before).to(self._at(token))
                self._report.report(rules.MC010, message, at, notes=(note,))
                return False
        return True

    def _at(self, token: Token) -> Span:
        return Span(self._source.path, token.start, token.end)

    def _too_deep(self, at: Span, limit: int) -> None:
        self._report.report(rules.MC010, f"this is nested deeper than {limit} levels", at, help="name the inner parts")


def _fed(start: str, tokens: Sequence[Token]) -> Automaton:
    """A parser that has taken tokens, of which it takes all."""
    parser, words = Automaton(start), machine()
    for token in tokens:
        parser.feed(terminal_of(parser, words, token), token)
    return parser


def terminal_of(parser: Automaton, words: Machine, token: Token) -> str:
    """What a token is here: a clause word where the grammar has that clause, else a name."""
    found = words.candidates(token.kind, token.text)
    due = parser.choices()
    possible = [name for name in found if name in due]
    if len(possible) > 1:
        possible = [name for name in possible if parser.can_shift(name)] or possible
    return possible[0] if possible else found[-1] if found else "BAD"


#: what to write for characters of other languages
_MEANT = {
    "&": "write `and`",
    "|": "write `or`; `|` stands between the kinds of a list",
    "!": "write `not`, or `!=`",
    ";": "nothing stands between statements, and a comma between parameters",
    "'": 'text stands in double quotes: `"..."`',
}


def _shown(char: str) -> str:
    return f"`{char}`" if char.isprintable() else f"U+{ord(char):04X}"


def due(tokens: Sequence[Token]) -> frozenset[str]:
    """The terminals that can follow the first tokens of a declaration; none if these do not follow the grammar."""
    parser, words = Automaton("decl"), machine()
    if all(parser.feed(terminal_of(parser, words, token), token) for token in tokens):
        return frozenset(parser.accepts())
    return frozenset()
