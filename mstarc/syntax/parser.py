"""Text to syntax tree. Takes a source file; gives a model and reports every declaration that does not follow the grammar.

Whatever the text is, nothing here raises: a declaration with an error is reported once and left out, the others are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from lark import Token as LarkToken
from lark import Tree
from lark.exceptions import UnexpectedInput
from lark.parsers.lalr_analysis import Shift
from lark.parsers.lalr_interactive_parser import InteractiveParser

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.source import SourceFile, Span
from mstarc.syntax import ast
from mstarc.syntax.build import DEEPEST, Builder, NumberTooLarge, TooDeep
from mstarc.syntax.explain import Found, explain
from mstarc.syntax.machine import machine
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
        decls = [decl for segment in rest if (decl := self._decl(segment)) is not None]
        if name is None:
            return None
        whole = Span(self._source.path, header.tokens[0].start, self._size)
        return ast.Model(name, tuple(decls), len(decls) == len(rest), whole)

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
        assert isinstance(name, LarkToken)
        return ast.Name(str(name), Span(self._source.path, name.start_pos or 0, name.end_pos or 0))

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

    def _tree(self, segment: Segment, start: str) -> Tree[LarkToken] | None:
        if not self._lexed(segment.tokens):
            return None
        parser = _begin(start)
        fed: list[LarkToken] = []
        for token in segment.tokens:
            fed.append(LarkToken(_terminal(parser, token), token.text, start_pos=token.start, end_pos=token.end))
            if len(parser.parser_state.value_stack) > STACK:
                self._too_deep(self._at(token), DEEPEST)
                return None
            try:
                parser.feed_token(fed[-1])
            except UnexpectedInput:
                before = _begin(start)
                for earlier in fed[:-1]:
                    before.feed_token(earlier)
                explain(Found(self._source, segment, len(fed) - 1), before, self._report)
                return None
        try:
            end = segment.tokens[-1].end
            result = parser.feed_token(LarkToken("$END", "", start_pos=end, end_pos=end))
        except UnexpectedInput:
            explain(Found(self._source, segment, len(segment.tokens)), parser, self._report)
            return None
        assert isinstance(result, Tree)
        return result

    def _lexed(self, tokens: tuple[Token, ...]) -> bool:
        """Whether the tokens are tokens of the language; reports the first that is not."""
        _, deepest = unclosed(tokens)
        if deepest > BRACKETS:
            self._too_deep(self._at(tokens[0]), BRACKETS)
            return False
        for before, token in zip((None, *tokens), tokens, strict=False):
            if token.kind == "bad":
                self._report.report(
                    rules.MC010, f"the character {_shown(token.text)} has no meaning here", self._at(token)
                )
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


def _begin(start: str) -> InteractiveParser:
    return machine().lark.parse_interactive("", start=start)


def _terminal(parser: InteractiveParser, token: Token) -> str:
    """What a token is here: a clause word where the grammar has that clause, else a name.

    The states of an LALR parser are merged, so a table entry alone does not say that a word can stand here: try it.
    """
    found = machine().candidates(token.kind, token.text)
    due = parser.choices()
    possible = [name for name in found if name in due]
    if len(possible) > 1:
        possible = [name for name in possible if _accepts(parser, name)] or possible
    return possible[0] if possible else found[-1] if found else "BAD"


def _accepts(parser: InteractiveParser, terminal: str) -> bool:
    """Whether the parser can shift a terminal now: its reductions are run on the stack of states alone."""
    states = parser.parser_state.parse_conf.states
    stack = list(parser.parser_state.state_stack)
    while terminal in states[stack[-1]]:
        action, rule = states[stack[-1]][terminal]
        if action is Shift:
            return True
        del stack[len(stack) - len(rule.expansion) :]
        stack.append(states[stack[-1]][rule.origin.name][1])
    return False


def _shown(char: str) -> str:
    return f"`{char}`" if char.isprintable() else f"U+{ord(char):04X}"


def due(tokens: Sequence[Token]) -> frozenset[str]:
    """The terminals that can follow the first tokens of a declaration; none if these do not follow the grammar."""
    parser = _begin("decl")
    try:
        for token in tokens:
            parser.feed_token(LarkToken(_terminal(parser, token), token.text, start_pos=token.start, end_pos=token.end))
    except UnexpectedInput:
        return frozenset()
    return frozenset(parser.accepts())
