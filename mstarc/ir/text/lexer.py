"""Tokens of the IR's text form, and a cursor over them. Blanks, newlines and `#` comments separate tokens and mean nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NoReturn

from mstarc.ir.errors import IrTextError
from mstarc.ir.types import ValueId

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r]+|\#[^\n]*)
      | (?P<newline>\n)
      | (?P<var>%\d+)
      | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<symbol>->|\.\.|==|!=|<=|>=|//|[-<>=+*/%()\[\]{},:.|?])""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """kind: var, number, name, string, symbol, end."""

    kind: str
    text: str
    line: int


def tokens(text: str, first_line: int) -> list[Token]:
    """The tokens of `text`, whose first line has the number `first_line`. Raises `IrTextError` at a character of no token."""
    found: list[Token] = []
    at, line = 0, first_line
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise IrTextError(f"{text[at]!r} begins no token", line)
        kind = str(match.lastgroup)
        if kind == "newline":
            line += 1
        elif kind != "skip":
            found.append(Token(kind, match.group(), line))
        at = match.end()
    found.append(Token("end", "the end of the text", line))
    return found


class Cursor:
    """Reads tokens from left to right. Every `take_*` raises `IrTextError` if the next token is something else."""

    def __init__(self, text: str, first_line: int = 1) -> None:
        self._tokens = tokens(text, first_line)
        self._at = 0

    @property
    def token(self) -> Token:
        return self._tokens[self._at]

    @property
    def after(self) -> Token:
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def advance(self) -> Token:
        token = self.token
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def sees(self, *texts: str) -> bool:
        """Whether the next token is one of these words or symbols."""
        return self.token.kind in ("name", "symbol") and self.token.text in texts

    def accept(self, text: str) -> bool:
        """Take the word or symbol if it is next."""
        if not self.sees(text):
            return False
        self.advance()
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"`{text}`")

    def fail(self, wanted: str) -> NoReturn:
        raise IrTextError(f"{wanted} is due, but here is `{self.token.text}`", self.token.line)

    def take_name(self, what: str = "a name") -> str:
        if self.token.kind != "name":
            self.fail(what)
        return self.advance().text

    def take_one_of(self, names: tuple[str, ...]) -> str:
        if self.token.kind != "name" or self.token.text not in names:
            self.fail("one of " + ", ".join(f"`{n}`" for n in names if n))
        return self.advance().text

    def take_names(self) -> tuple[str, ...]:
        names = [self.take_name()]
        while self.accept(","):
            names.append(self.take_name())
        return tuple(names)

    def take_var(self) -> ValueId:
        if self.token.kind != "var":
            self.fail("a value such as `%3`")
        return ValueId(int(self.advance().text[1:]))

    def take_string(self) -> str:
        if self.token.kind != "string":
            self.fail("a string")
        token = self.advance()
        try:
            value = json.loads(token.text)
        except json.JSONDecodeError as error:
            raise IrTextError(f"the string {token.text} is not a JSON string: {error.msg}", token.line) from None
        return str(value)
