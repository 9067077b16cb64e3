"""Says in the author's words why a token cannot stand where it does. Takes the parser's state before the token; reports once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.source import SourceFile, Span
from mstarc.syntax.automaton import Automaton
from mstarc.syntax.machine import machine
from mstarc.syntax.tokens import Segment, Token, unclosed

_STATEMENTS = frozenset(
    ("EMIT", "SEND", "COLLECT", "LOOP", "STOP", "DROP", "FORK", "FOR", "PARALLEL", "TOGETHER", "REQUIRE", "IF", "NAME")
)
_VALUES = frozenset(("NUMBER", "STRING", "TRUE", "FALSE", "NAME", "LSQB", "LPAR", "MINUS", "NOT", "IF"))
_OPERATORS = frozenset(("ADD", "MUL", "CMP", "AND", "OR", "LSQB", "DOT", "LPAR", "READS", "WRITES"))
_ATTRIBUTES = frozenset(
    ("ATTEND", "POSITIONS", "TAKES", "FROZEN", "CROSS", "RANDOM", "SAMPLES", "BATCH", "GRAPH", "ASYNC")
)
#: (terminals that must all be possible, terminals they stand for, words), the widest first
_GROUPS = (
    (frozenset({"EMIT", "LOOP"}), _STATEMENTS, "a statement"),
    (frozenset({"NUMBER", "STRING"}), _VALUES, "an expression"),
    (frozenset({"ADD", "MUL"}), _OPERATORS, "an operator"),
    (_ATTRIBUTES, _ATTRIBUTES, "an attribute"),
    (frozenset({"NAME", "LIST", "ENUM"}), frozenset({"NAME", "LIST", "ENUM", "HOST"}), "a type"),
)
_PLAIN = {"NAME": "a name", "NUMBER": "a number", "STRING": "a text", "CMP": "a comparison", "ADD": "`+`", "MUL": "`*`"}
_PLAIN |= {"$END": "the end of the declaration"}
#: the clauses of declarations, in their one order
_CLAUSES = {
    "context": ("on", "max", "when"),
    "param": ("in", "="),
    "stream": ("where", "by", "at_end", "after_end", "overlap", "capacity"),
}
_DECLARATIONS = (
    "config",
    "param",
    "let",
    "type",
    "extern",
    "cache",
    "context",
    "sampler",
    "node",
    "stream",
    "walk",
    "request",
)
_BEHIND_A_NAME = {"COMMA", "DOT", "EQUAL", "LPAR"}
#: how the language says what others have a word for
_WORDS = {
    "return": "a walk gives what its `-> NAME: TYPE` names: bind that name",
    "while": "write `loop NAME max N { stop when CONDITION ... }`",
    "break": "write `stop when CONDITION`",
    "continue": "guard the statements below with `when`",
    "print": "`emit VALUE as MODALITY` shows a value to the client",
    "yield": "write `emit VALUE as MODALITY`, or `send VALUE -> STREAM`",
}
_BRACKETS = {"{": "}", "(": ")", "[": "]"}


@dataclass(frozen=True, slots=True)
class Found:
    """The token at `index` of a segment; past the last one, the end of the segment."""

    source: SourceFile
    segment: Segment
    index: int

    @property
    def token(self) -> Token | None:
        tokens = self.segment.tokens
        return tokens[self.index] if self.index < len(tokens) else None

    def near(self, by: int) -> Token | None:
        """The token so many places after (before) this one."""
        at = self.index + by
        return self.segment.tokens[at] if 0 <= at < len(self.segment.tokens) else None

    def span(self, token: Token | None) -> Span:
        """Where a token is; the end of the segment is shown on its last token."""
        shown = token or self.segment.tokens[-1]
        return Span(self.source.path, shown.start, shown.end)


def explain(found: Found, parser: Automaton, report: Collector) -> None:
    """Report the error at `found`. `parser` is in the state before it."""
    token = found.token
    due = parser.accepts()
    if token is None:
        _at_end(found, due, report)
        return
    at = found.span(token)
    if token.text in machine().reserved and "NAME" in due and _would_do(found, parser):
        message = f"`{token.text}` is a word of the language, so nothing can be called that"
        report.report(rules.MC011, message, at, "a name is due here", help=f"call it `my_{token.text}`, say")
        return
    if _stop_in_if(found, due, report) or _word_of_others(found, due, report):
        return
    special = _special(found, token, due)
    if special is not None:
        message, label, help_text = special
        report.report(rules.MC010, message, at, label, help=help_text)
        return
    report.report(rules.MC010, f"`{token.text}` cannot stand here", at, _due(due))


def _at_end(found: Found, due: set[str], report: Collector) -> None:
    """The declaration stops too early."""
    opened, _ = unclosed(found.segment.tokens)
    where = "the file ends" if found.segment.last else "the next declaration begins"
    at = found.span(None)
    if opened is not None:
        message = f"`{opened.text}` is never closed: {where} before its `{_BRACKETS[opened.text]}`"
        label = Label(at, f"{where} after this")
        report.report(rules.MC010, message, found.span(opened), f"no `{_BRACKETS[opened.text]}`", secondary=(label,))
        return
    last = found.segment.tokens[-1]
    if last.text == ",":
        report.report(rules.MC010, "nothing follows this comma", at, help="delete the comma")
        return
    report.report(rules.MC010, f"{where} in mid-declaration", at, _due(due - {"$END"}, "after this"))


def _stop_in_if(found: Found, due: set[str], report: Collector) -> bool:
    """`if c { stop }` in a walk, reported at the `if`: its `stop` is as wrong, and one mistake is one error."""
    tokens, before = found.segment.tokens, found.near(-1)
    if tokens[0].text != "walk" or before is None or before.text != "stop" or due != {"WHEN"}:
        return False
    opened, _ = unclosed(tokens[: found.index])
    head = tokens[: tokens.index(opened)] if opened is not None else ()
    start = next((i for i in reversed(range(len(head))) if head[i].text in ("if", "then", "{", "}")), 0)
    if not head or head[start].text != "if":
        return False
    condition = found.source.text.encode()[head[start].end : head[-1].end].decode().strip()
    help_text = f"write `stop when {condition}`; `if` belongs to requests"
    report.report(rules.MC010, "`if` cannot stand in a walk", found.span(head[start]), help=help_text)
    return True


def _word_of_others(found: Found, due: set[str], report: Collector) -> bool:
    """A statement that begins with a word of other languages, reported at that word."""
    word = found.near(-1)
    if word is None or word.text not in _WORDS or due != _BEHIND_A_NAME:
        return False
    message = f"`{word.text}` is no statement of the language"
    report.report(rules.MC010, message, found.span(word), help=_WORDS[word.text])
    return True


def _special(found: Found, token: Token, due: set[str]) -> tuple[str, str, str | None] | None:
    """(message, label, help) of the slips that have a name."""
    before = found.near(-1)
    if token.text == "?":
        return (
            "`?` stands in types only",
            "",
            "a value that may be absent goes to a parameter of type `T?`, or into `present(x)`",
        )
    if before is not None and before.text == ",":
        return f"`{token.text}` cannot follow a comma", _due(due), "delete the comma if the list ends here"
    if token.text in (".", "..") and before is not None and before.text == "..":
        return "a range has two dots", _due(due), "write `LOW..HIGH`"
    if token.text == "if" and before is not None and before.text == "else":
        return "`else if` is not a form of the language", _due(due), "nest it: `else { if CONDITION { ... } }`"
    if before is not None and before.text == "stop" and due == {"WHEN"}:
        return "this `stop` does not say when", _due(due), "write `stop when CONDITION`"
    if before is not None and due == {"TIMES", "MAX"}:
        bound = f"`loop {before.text} max N`, which a `stop when` in it may end sooner"
        return f"loop `{before.text}` has no bound", _due(due), f"write {bound}, or `loop {before.text} times N`"
    order = _CLAUSES.get(found.segment.tokens[0].text, ())
    if token.text in order and _behind(found, order[order.index(token.text) :]):
        return (
            f"`{token.text}` cannot stand here",
            _due(due),
            f"a {found.segment.tokens[0].text} has each clause once, in this order: {', '.join(f'`{c}`' for c in order)}",
        )
    ternary = "conditional expressions begin with `if`", "", "write `if CONDITION then A else B`"
    if token.text == "else" and "LBRACE" in due:
        return ternary
    if token.text == "if" and {"ADD", "MUL"} <= due:
        return ternary
    if token.text == "}" and due == {"$END"}:
        return "this `}` closes nothing", "the declaration has ended before", "delete it"
    if token.text == "=" and {"ADD", "MUL"} <= due:
        return "`=` gives a name its value; here it cannot stand", _due(due), "`==` compares"
    return _foreign(found, token, due)


def _foreign(found: Found, token: Token, due: set[str]) -> tuple[str, str, str | None] | None:
    """What other languages say in another way: (message, label, help)."""
    before, after = found.near(-1), found.near(1)
    if before is None:
        return None
    cannot = f"`{token.text}` cannot stand here"
    if due == _BEHIND_A_NAME:  # a statement that begins with a name
        if token.text in ("+", "-", "*", "/"):
            return cannot, _due(due), f"write `{before.text} = ...`; a name is bound once, but for what a loop carries"
        if token.text == ":":
            return cannot, _due(due), f"what is bound has the type of its value: `{before.text} = ...`"
    if "AS" in due and token.text in ("}", "when"):
        return "this `emit` does not say as what", _due(due), "name the modality: `emit VALUE as text`, say"
    if token.text in ("to", "into") and "__ANON_1" in due:
        return cannot, _due(due), "write `send VALUE -> STREAM`"
    if {"ADD", "__ANON_1"} <= due:
        return "the `send` before this does not say where to", _due(due), "write `send VALUE -> STREAM`"
    if due == {"COLON"}:
        return f"`{before.text}` has no type", _due(due), f"write `{before.text}: i64`, say"
    if token.text == "advance" and "POSITIONS" not in due and _ATTRIBUTES & due:
        return cannot, _due(due), "it stands behind `positions`: `positions same advance 1`"
    if token.text == "let":
        return "`let` cannot stand in a walk or request", _due(due), "write `NAME = ...`"
    if token.text == ".." and found.segment.tokens[0].text in ("walk", "request"):
        return (
            cannot,
            _due(due),
            "`for` takes streams in walks, lists in requests; `loop NAME times N` of a walk counts",
        )
    if token.text == "," and before.kind == "number" and after is not None and after.kind == "number":
        return cannot, _due(due), f"a number has a dot: `{before.text}.{after.text}`"
    if token.text == "." and after is not None and after.kind == "number" and "NUMBER" in due:
        return cannot, _due(due), f"a dot has digits on both sides: `0.{after.text}`"
    if token.text == before.text == "*":
        return "`**` is no operator of the language", _due(due), "multiply"
    if due == {"$END"} and token.kind == "word":
        return cannot, _due(due), f"declarations begin with {', '.join(f'`{word}`' for word in _DECLARATIONS)}"
    return None


def _behind(found: Found, clauses: Collection[str]) -> bool:
    """Whether the token stands behind one of these clauses of its declaration, and in no bracket."""
    fed = found.segment.tokens[: found.index]
    return unclosed(fed)[0] is None and any(token.text in clauses for token in fed[2:])


def _would_do(found: Found, parser: Automaton) -> bool:
    """Whether the text would go on if the word were a name."""
    trial = parser.copy()
    follows = found.near(1)
    if not trial.feed("NAME", Token("word", "x", 0, 0, False, False)):
        return False
    if follows is None:
        return "$END" in trial.accepts()
    return bool(set(machine().candidates(follows.kind, follows.text)) & trial.accepts())


def _due(due: set[str], where: str = "here") -> str:
    """`due here: an operator or `as``."""
    left = set(due)
    words = []
    for needed, group, word in _GROUPS:
        if needed <= left:
            words.append(word)
            left -= group
    texts = machine().texts
    words += sorted(_PLAIN.get(name) or f"`{texts.get(name, name)}`" for name in left)
    if len(words) > 8:
        words = [*words[:7], "..."]
    if not words:
        return ""
    return f"due {where}: " + (" or ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0])
