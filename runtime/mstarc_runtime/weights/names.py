"""Names of tensors with signs: `*` one part between dots, `**` any number of them, `#` a number, `#-2` in a new name that number less 2."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

Holes: TypeAlias = tuple[str, ...]  # what the signs of a name stand for

_SIGNS = re.compile(r"\*\*|\*|#(?:[+-]\d+)?")
_FORMS = {"**": r"(.+)", "*": r"([^.]+)", "#": r"(0|[1-9][0-9]{0,8}|#)"}


def signs(name: str) -> list[str]:
    """The signs of a name, in order."""
    return _SIGNS.findall(name)


@lru_cache(maxsize=4096)
def pattern(name: str) -> re.Pattern[str]:
    """What the names that fit look like; a group for each sign."""
    texts, found = _SIGNS.split(name), signs(name)
    forms = [_FORMS["#" if sign.startswith("#") else sign] for sign in found]
    return re.compile("".join(re.escape(text) + form for text, form in zip(texts, [*forms, ""], strict=True)))


def fits(names: Iterable[str], name: str) -> dict[str, Holes]:
    """The names that fit -> what the signs stand for."""
    form = pattern(name)
    return {each: match.groups() for each in names if (match := form.fullmatch(each)) is not None}


def named(name: str, holes: Sequence[str], source: str) -> str:
    """A name whose signs are filled with what those of `source` stand for, in order. Signs that nothing is there for stay."""
    theirs = signs(source)
    counted = any(sign.startswith("#") for sign in theirs)
    pairs = iter(zip(holes, theirs, strict=True))

    def put(sign: re.Match[str]) -> str:
        number = sign[0].startswith("#")
        pair = next(pairs, None) if counted or not number else None
        if pair is None:
            return sign[0]
        return _shifted(pair[0], _shift(sign[0]) - _shift(pair[1])) if number else pair[0]

    return _SIGNS.sub(put, name)


def numbered(name: str, number: int) -> str:
    """A name with this number in the place of its `#`."""
    return name.replace("#", str(number))


def without_number(name: str, holes: Holes) -> tuple[Holes, int]:
    """What the signs but `#` stand for, and the number. 0 for a name without `#`."""
    if "#" not in name:
        return holes, 0
    place = signs(name).index("#")
    return (*holes[:place], *holes[place + 1 :]), int(holes[place])


def alike(name: str) -> str:
    """The name with its numbers left open: what the tensors of all layers share."""
    return re.sub(r"(?<![^./])\d+(?![^./])", "*", name)


def _shift(sign: str) -> int:
    return int(sign[1:] or 0) if sign.startswith("#") else 0


def _shifted(hole: str, by: int) -> str:
    return str(int(hole) + by) if hole.isdecimal() else hole
