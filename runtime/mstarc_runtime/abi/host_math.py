"""Host numbers in single precision and the tables of a flow's times: what host expressions of a spec compute with, wherever they run.

The elements of `linspace` and `shift` are f32 one by one, and whatever host number meets one is rounded to f32 first, so `lo < t`
with a table element `t` compares in f32 (language, table 2b, row 36).
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable
from typing import Any


class F32(float):
    """A host number in single precision. Sums, products and quotients of f32 numbers via f64 are correctly rounded."""

    __slots__ = ()
    __array_ufunc__ = None  # numpy leaves `array * number` to the number, which knows what to do

    def __new__(cls, value: float) -> F32:
        try:
            return super().__new__(cls, struct.unpack("f", struct.pack("f", value))[0])
        except OverflowError:
            return super().__new__(cls, float("inf") if value > 0 else float("-inf"))

    def __hash__(self) -> int:
        return super().__hash__()

    def __neg__(self) -> F32:
        return F32(-float(self))


def _rounding(op: Callable[[float, float], Any], swapped: bool = False) -> Callable[[F32, object], Any]:
    def method(self: F32, other: object) -> Any:
        if not isinstance(other, int | float):  # an array takes a plain float at its own precision
            return op(other, float(self)) if swapped else op(float(self), other)  # type: ignore[arg-type]
        a, b = float(self), float(F32(other))
        result = op(b, a) if swapped else op(a, b)
        return result if isinstance(result, bool) else F32(result)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod"):
    setattr(F32, f"__{_name}__", _rounding(getattr(operator, _name)))
    setattr(F32, f"__r{_name}__", _rounding(getattr(operator, _name), swapped=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(F32, f"__{_name}__", _rounding(getattr(operator, _name)))


def linspace(low: float, high: float, count: int) -> tuple[F32, ...]:
    """`count` f32 numbers from low to high, each counted from the nearer end, so that both ends are exact.

    The step is f32; low + i * step is rounded once (what a fused multiply-add gives).
    """
    if count < 1:
        raise ValueError(f"linspace needs at least one element, not {count}")
    if count == 1:
        return (F32(low),)
    first, last = float(F32(low)), float(F32(high))
    step = float((F32(high) - F32(low)) / (count - 1))
    return tuple(F32(first + step * i if i < count // 2 else last - step * (count - 1 - i)) for i in range(count))


def shift(times: Iterable[float], by: float) -> tuple[F32, ...]:
    """by·t / (1 + (by - 1)·t) in f32 for each t: moves the steps of a flow towards t = 1 (time shift of rectified flows)."""
    return tuple(F32(by * F32(t) / (1 + (by - 1) * F32(t))) for t in times)
