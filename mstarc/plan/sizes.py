"""Bytes of values and of keys and values, as numbers or, where a length is only known with a request, as a product that names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from mstarc.ir.fold import FoldError, fold
from mstarc.ir.text.expressions import shown
from mstarc.ir.types import Apply, Binary, Expr, Lit, Ref, Tensor, Type, Unary, Var
from mstarc.plan.chips import number_bytes
from mstarc.plan.evaluate import ConfigScope
from mstarc_runtime.abi.linked import CacheLink

BYTES = {"f32": 4, "bf16": 2, "f16": 2, "i64": 8, "i32": 4, "u8": 1, "bool": 1}


@dataclass(frozen=True, slots=True)
class Size:
    """number * the factors, in bytes. `number` alone if no factor depends on the request."""

    number: int
    factors: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return " * ".join((bytes_text(self.number), *self.factors))


def size_of(kind: Type, scope: ConfigScope, words: Mapping[int, str]) -> Size:
    """Bytes of a tensor. words: names of the values that its dims may mention."""
    if not isinstance(kind, Tensor):
        return Size(8)  # a host scalar
    known, open_dims = [BYTES[kind.dtype]], []
    for dim in kind.dims:
        left = partly(dim, scope)
        if isinstance(left, Lit) and isinstance(left.value, int):
            known.append(left.value)
        else:
            text = shown(left, words)
            open_dims.append(f"({text})" if isinstance(left, Binary) else text)
    return Size(prod(known), tuple(open_dims))


def usual_size(kind: Type, scope: ConfigScope) -> int | None:
    """Bytes of a tensor for the values that a scope gives its dims; None if it lacks one."""
    if not isinstance(kind, Tensor):
        return None
    try:
        return BYTES[kind.dtype] * prod(int(fold(dim, scope)) for dim in kind.dims)
    except FoldError:
        return None


def partly(expr: Expr, scope: ConfigScope) -> Expr:
    """The expression with every part that has a value put in."""
    try:
        value = fold(expr, scope)
    except FoldError:
        pass
    else:
        if isinstance(value, (bool, int, float, str)):
            return Lit(value)
    match expr:
        case Binary(_, a, b):
            return replace(expr, a=partly(a, scope), b=partly(b, scope))
        case Unary(_, x):
            return replace(expr, x=partly(x, scope))
        case Apply(_, args):
            return replace(expr, args=tuple(partly(arg, scope) for arg in args))
        case Ref() | Var() | _:
            return expr


def kv_bytes(cache: CacheLink, device: str) -> int:
    """Bytes of one entry of a context: 2 * layers * kv_heads * head_dim numbers, keys and values of every layer."""
    return 2 * cache.layers * cache.kv_heads * cache.head_dim * number_bytes(device)


def gigabytes(count: float) -> str:
    """`6.60 GB`, as chips are sold; what would be 0.00 of them in smaller units."""
    for size, unit in ((5e6, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / 1e9:.2f} GB" if unit == "GB" else f"{count / size:.3g} {unit}"
    return f"{count:.3g} B"


def bytes_text(count: int) -> str:
    """`23040 B`, `45.0 KiB`, `90.0 MiB`."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
