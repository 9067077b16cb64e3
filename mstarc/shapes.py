"""Plain trees, as YAML gives them, to typed values. A shape takes a value and its path; what does not fit is told, all of it.

A shape gives the value that it makes; what it gives after telling a problem is not to be used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """`what` is wrong with the value at `path`; with `known`, its last part is a key and not one of these."""

    path: Path
    what: str
    known: tuple[str, ...] = ()


Shape: TypeAlias = Callable[[Any, Path, list[Problem]], Any]


def text(value: Any, path: Path, problems: list[Problem]) -> Any:
    """Text."""
    if not isinstance(value, str):
        problems.append(Problem(path, "is not text"))
    return value


def flag(value: Any, path: Path, problems: list[Problem]) -> Any:
    """A bool."""
    if not isinstance(value, bool):
        problems.append(Problem(path, "is neither true nor false"))
    return value


def matching(pattern: str, what: str) -> Shape:
    """Text of a form."""
    form = re.compile(pattern)

    def shape(value: Any, path: Path, problems: list[Problem]) -> Any:
        if not isinstance(value, str):
            problems.append(Problem(path, "is not text"))
        elif form.fullmatch(value) is None:
            problems.append(Problem(path, what))
        return value

    return shape


def checked(check: Callable[[Any], object]) -> Shape:
    """Whatever passes a check; its ValueError says what is wrong."""

    def shape(value: Any, path: Path, problems: list[Problem]) -> Any:
        try:
            check(value)
        except ValueError as error:
            problems.append(Problem(path, str(error)))
        return value

    return shape


def optional(of: Shape) -> Shape:
    """A value, or null."""
    return lambda value, path, problems: None if value is None else of(value, path, problems)


def mapping(of: Shape) -> Shape:
    """Values of one shape by text."""

    def shape(value: Any, path: Path, problems: list[Problem]) -> Any:
        if not isinstance(value, dict):
            problems.append(Problem(path, "is not a mapping"))
            return {}
        made = {}
        for key, item in value.items():
            here = (*path, str(key))
            if not isinstance(key, str):
                problems.append(Problem(here, "is a key that is not text"))
            made[key] = of(item, here, problems)
        return made

    return shape


def record(
    make: Callable[..., Any],
    fields: Mapping[str, Shape],
    needed: tuple[str, ...] = (),
    named: Mapping[str, str] | None = None,
    rule: Callable[[Any], str] | None = None,
) -> Shape:
    """A mapping with known keys. named: the argument of `make` for a key that is called otherwise. rule: what is wrong with the made."""

    def shape(value: Any, path: Path, problems: list[Problem]) -> Any:
        if not isinstance(value, dict):
            problems.append(Problem(path, "is not a mapping"))
            return None
        before = len(problems)
        made = {}
        for name, of in fields.items():
            if name in value:
                made[(named or {}).get(name, name)] = of(value[name], (*path, name), problems)
            elif name in needed:
                problems.append(Problem((*path, name), "is missing"))
        for key in value:
            if not isinstance(key, str):
                problems.append(Problem((*path, str(key)), "is a key that is not text"))
            elif key not in fields:
                problems.append(Problem((*path, key), "is unknown", tuple(fields)))
        if len(problems) > before:
            return None
        found = make(**made)
        wrong = rule(found) if rule is not None else ""
        if wrong:
            problems.append(Problem(path, wrong))
        return found

    return shape
