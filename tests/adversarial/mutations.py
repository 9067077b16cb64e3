"""Seeded damage to a text: bytes, tokens and lines are changed, lost, doubled, swapped, or become something awkward or alike."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from typing import Any

_TOKEN = re.compile(rb"\s+|#[^\n]*|[A-Za-z_]\w*|\d+(?:\.\d+)?|.", re.DOTALL)
_WORDS = b"loop send emit carry for in if max collect drop together null true nan .inf ~ ranks a.b".split()
_DEEP = (b"(" * 300, b"[" * 300, b"{" * 300, b")" * 40, b"not " * 500, b"- " * 500)
_NUMBERS = (
    b"9" * 400,
    b"99999999999999999999",
    b"-1",
    b"0",
    b"1e999",
    b"0x1F",
    b"1_000",
    b"2001-01-01",
    b"inf",
    b"nan",
)
_YAML = (
    b"&a [*a]",
    b"*a",
    b"<<: *a",
    b"!!python/object:os.system x",
    b"!!binary aGk=",
    b"!!set {a}",
    b"? ",
    b"---\n",
    b": ",
)
_OTHER = (
    b'"',
    b"'",
    b"\\",
    b"\x00",
    b"\xff",
    b"\xc3\xa9",
    b"\xe2\x80\xa8",
    b"\r\n",
    b"\t",
    b"#",
    b"\xef\xbb\xbf",
    b'"""',
)
_AWKWARD = (*_WORDS, *_DEEP, *_NUMBERS, *_YAML, *_OTHER, b"[[ranks]]", b"{a: 1, a: 2}", b"a=1\n")


def _byte(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]


def _lost(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + data[at + draw.randint(1, 30) :]


def _ends(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def _token(draw: random.Random, data: bytes) -> bytes:
    """One token becomes another one, an awkward one, or changes places with another one."""
    tokens: list[bytes] = _TOKEN.findall(data)
    solid = [n for n, token in enumerate(tokens) if token.strip()]
    if not solid:
        return data
    one, other = draw.choice(solid), draw.choice(solid)
    match draw.randrange(3):
        case 0:
            tokens[one] = tokens[other]
        case 1:
            tokens[one] = draw.choice(_AWKWARD)
        case _:
            tokens[one], tokens[other] = tokens[other], tokens[one]
    return b"".join(tokens)


def _alike(draw: random.Random, data: bytes) -> bytes:
    """A word becomes another word of the text, or a number another number: what still parses is checked more deeply."""
    tokens: list[bytes] = _TOKEN.findall(data)
    solid = [n for n, token in enumerate(tokens) if re.match(rb"\w", token)]
    if not solid:
        return data
    one = draw.choice(solid)
    tokens[one] = draw.choice([tokens[n] for n in solid if tokens[n][:1].isdigit() == tokens[one][:1].isdigit()])
    return b"".join(tokens)


def _line(draw: random.Random, data: bytes) -> bytes:
    """A line is lost, doubled elsewhere, or indented anew."""
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    match draw.randrange(3):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, draw.choice(lines))
        case _:
            lines[at] = b" " * draw.randrange(5) + lines[at].lstrip()
    return b"\n".join(lines)


_WAYS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _byte,
    _lost,
    _ends,
    _token,
    _token,
    _alike,
    _alike,
    _line,
    _line,
)


def mutated(draw: random.Random, data: bytes) -> bytes:
    """The text after one to three changes."""
    for _ in range(draw.randint(1, 3)):
        data = draw.choice(_WAYS)(draw, data or b"x")
    return data


_VALUES: tuple[Any, ...] = (
    None,
    0,
    -1,
    1e9,
    "",
    "x",
    "a.b",
    "((",
    "1/0",
    "param:none",
    [],
    {},
    True,
    [None],
    "9" * 500,
)


def edited(draw: random.Random, data: bytes) -> bytes:
    """JSON with one to three of its values lost, replaced by an awkward one, by another of its own, or by damaged text."""
    whole = json.loads(data)
    for _ in range(draw.randint(1, 3)):
        places = [path for path in places_of(whole) if path]
        if not places:
            break
        owner, key = _owner(whole, draw.choice(places))
        match draw.randrange(5):
            case 0:
                del owner[key]
            case 1:
                owner[key] = draw.choice(_VALUES)
            case 2:
                other, name = _owner(whole, draw.choice(places))
                owner[key] = copy.deepcopy(other[name])
            case _:
                text = json.dumps(owner[key])
                found = mutated(draw, text.encode()).decode("utf-8", "replace")
                owner[key] = found.strip('"') if isinstance(owner[key], str) else _number(found, owner[key])
    return json.dumps(whole, indent=2).encode()


def places_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places_of(item, (*path, key)))]


def _owner(whole: Any, path: tuple[Any, ...]) -> tuple[Any, Any]:
    for step in path[:-1]:
        whole = whole[step]
    return whole, path[-1]


def _number(text: str, value: Any) -> Any:
    """What damaged JSON is, or the value doubled if it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return value * 2 if isinstance(value, int | list) else value
