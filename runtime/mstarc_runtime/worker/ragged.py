"""Values of a batch that are kept request by request: their shapes differ, or some requests do not have them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mstarc_runtime.program import ABSENT


class Fault:
    """In place of a row's value: why it could not be computed."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Ragged:
    """One value per row: an array of any shape, ABSENT, or a fault. Operators go row by row: a fault stays one, and to compute with what
    is absent is one. Of an array [B] every row takes its own number.
    """

    __slots__ = ("items",)
    __array_ufunc__ = None  # numpy leaves `array * ragged` to the operators here

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]

    def select(self, rows: Sequence[int]) -> Ragged:
        """The values of these rows."""
        return Ragged([self.items[row] for row in rows])

    def __neg__(self) -> Ragged:
        return Ragged([_computed(operator.neg, item) for item in self.items])

    def __invert__(self) -> Ragged:
        return Ragged([_computed(operator.invert, item) for item in self.items])

    def faults(self) -> list[tuple[int, BaseException]]:
        """(row, error) of the rows that could not be computed."""
        return [(row, item.error) for row, item in enumerate(self.items) if isinstance(item, Fault)]


def _computed(op: Callable[..., Any], *args: Any) -> Any:
    """What an operator gives for one row."""
    for arg in args:
        if isinstance(arg, Fault):
            return arg
        if arg is ABSENT:
            return Fault(
                TypeError(
                    f"`{op.__name__}` does not apply to an absent value: a condition was off, or a call had no entries"
                )
            )
    try:
        return op(*args)
    except Exception as error:  # of this row alone
        return Fault(error)


def _by_row(op: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Ragged, Any], Ragged]:
    def method(self: Ragged, other: Any) -> Ragged:
        pairs = ((item, _of_row(other, row)) for row, item in enumerate(self.items))
        return Ragged([_computed(op, b, a) if swapped else _computed(op, a, b) for a, b in pairs])

    return method


def _of_row(value: Any, row: int) -> Any:
    """A row's part of a value beside a ragged one. A number is no reason to compute with more digits than the arrays have: numpy is given
    a Python number; a torch scalar of no dims is treated like one.
    """
    if not isinstance(value, Ragged) and not hasattr(value, "shape"):
        return value  # one for all rows
    found = value[row]
    return found.item() if isinstance(found, np.generic) else found


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or"):
    _op = getattr(operator, f"{_name}_" if _name in ("and", "or") else _name)
    setattr(Ragged, f"__{_name}__", _by_row(_op, swapped=False))
    setattr(Ragged, f"__r{_name}__", _by_row(_op, swapped=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Ragged, f"__{_name}__", _by_row(getattr(operator, _name), swapped=False))
