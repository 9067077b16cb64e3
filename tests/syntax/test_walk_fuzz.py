"""Whatever the text, the front end gives findings with places in the file, and never raises. What it accepts, the verifier accepts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mstarc.diagnostics.core import Collector
from mstarc.ir.verify import verify
from mstarc.passes.lower import lower
from mstarc.source import SourceFile
from mstarc.syntax.machine import machine
from mstarc.syntax.parser import parse_walk
from mstarc.syntax.tokens import Token, tokenize

ROOT = Path(__file__).resolve().parents[2]
PATHS = [
    *sorted(ROOT.glob("tests/passes/models/*.walk")),
    ROOT / "specs/ask.walk",
    ROOT / "examples/hello/hello.walk",
]
HELLO = (ROOT / "examples/hello/hello.walk").read_text(encoding="utf-8")


def front_end(text: str) -> bool:
    """Run the whole front end on a text; whether it was accepted."""
    report = Collector()
    model = parse_walk(SourceFile("t.walk", text), report)
    program = None if model is None else lower(model, report)
    size = len(text.encode())
    for finding in report.findings():
        spans = [finding.primary.span, *(label.span for label in finding.secondary)]
        assert all(0 <= span.start <= span.end <= size for span in spans), finding
    if program is None:
        assert report.failed
    else:
        assert not report.failed
        verify(program)
    return program is not None


def tokens(text: str) -> tuple[Token, ...]:
    return tokenize(SourceFile("t.walk", text))


def spliced(text: str, token: Token, new: str) -> str:
    data = text.encode()
    return (data[: token.start] + new.encode() + data[token.end :]).decode()


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes(seed: int) -> None:
    """75 times: up to three bytes of a model become others."""
    draw = random.Random(seed)
    texts = [path.read_bytes() for path in PATHS]
    for _ in range(75):
        data = bytearray(draw.choice(texts))
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        front_end(data.decode("utf-8", "replace"))


@pytest.mark.parametrize("seed", range(2))
def test_names_in_wrong_places(seed: int) -> None:
    """75 times: one name of a model becomes another of it, so that most texts parse and are wrong later."""
    draw = random.Random(seed)
    accepted = 0
    for _ in range(75):
        text = draw.choice(PATHS).read_text(encoding="utf-8")
        names = [t for t in tokens(text) if t.kind == "word" and t.text not in machine().reserved]
        accepted += front_end(spliced(text, draw.choice(names), draw.choice(names).text))
    assert 0 < accepted < 75


def test_every_token_of_hello_is_needed_or_not_but_never_a_crash() -> None:
    every = tokens(HELLO)
    accepted = [token.text for token in every if front_end(spliced(HELLO, token, ""))]
    assert len(accepted) < len(every) / 10
    assert front_end(HELLO)
    for token in every[:-1]:  # the file that ends in the middle
        front_end(HELLO.encode()[: token.start].decode())


def test_every_token_of_hello_twice() -> None:
    for token in tokens(HELLO):
        front_end(spliced(HELLO, token, f"{token.text} {token.text}"))
