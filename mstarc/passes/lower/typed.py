"""Lowered expressions with their types, and what types have in common. Takes and gives values; reports nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mstarc.ir.text import print_expr
from mstarc.ir.types import (
    Binary,
    Chunk,
    Enum,
    Expr,
    Lit,
    Media,
    Parts,
    Phase,
    Ref,
    Scalar,
    Struct,
    Tensor,
    Type,
    Unary,
)
from mstarc.source import Span

INT, FLOAT, BOOL, TEXT = Scalar("int"), Scalar("float"), Scalar("bool"), Scalar("text")
FLOATS = ("f32", "bf16", "f16")
INTS = ("i64", "i32", "u8")
POISON = Lit(0)


@dataclass(frozen=True, slots=True)
class Typed:
    """A lowered expression. type None = not known (a config value, or poisoned by an error): it fits everywhere."""

    expr: Expr
    type: Type | None
    phase: Phase
    span: Span

    @property
    def host(self) -> bool:
        return self.phase == "host"

    @property
    def optional(self) -> bool:
        return is_optional(self.type)


def poison(span: Span, phase: Phase = "host") -> Typed:
    """What stands for an expression after its error was reported."""
    return Typed(POISON, None, phase, span)


def joint_phase(*parts: Typed) -> Phase:
    """The phase of an expression over these."""
    return "device" if any(part.phase == "device" for part in parts) else "host"


def is_optional(kind: Type | None) -> bool:
    return bool(getattr(kind, "optional", False))


def as_optional(kind: Type | None) -> Type | None:
    """`T?` of T."""
    return kind if kind is None or isinstance(kind, Chunk) else replace(kind, optional=True)


def content(kind: Type | None) -> Type | None:
    """What arithmetic sees: a chunk is its items."""
    return kind.item if isinstance(kind, Chunk) else kind


def number_of(kind: Type | None) -> str | None:
    """`int`, `float` or `bool` for what a scalar or tensor consists of; None for everything else."""
    match content(kind):
        case Scalar("int" | "float" | "bool" as name):
            return name
        case Tensor(dtype):
            return "float" if dtype in FLOATS else "int" if dtype in INTS else "bool"
        case _:
            return None


def is_truth(kind: Type | None) -> bool:
    """One truth value, or not known."""
    kind = content(kind)
    return kind is None or (number_of(kind) == "bool" and not getattr(kind, "dims", ()))


def as_tensor(kind: Type | None) -> Type | None:
    """What a value is on the device: host numbers become tensors without dims."""
    match kind:
        case Scalar("int", optional):
            return Tensor("i64", (), optional)
        case Scalar("float", optional):
            return Tensor("f32", (), optional)
        case Scalar("bool", optional):
            return Tensor("bool", (), optional)
        case _:
            return kind


def type_text(kind: Type | None) -> str:
    """A type as its author writes it."""
    match kind:
        case None:
            return "unknown"
        case Tensor(dtype, dims, optional):
            shape = f"[{', '.join(dim_text(dim) for dim in dims)}]" if dims else ""
            return dtype + shape + ("?" if optional else "")
        case Scalar(word, optional) | Media(word, optional) | Struct(word, _, optional):
            return word + ("?" if optional else "")
        case Enum(members):
            return f"enum({', '.join(members)})"
        case Parts(members):
            return f"list({' | '.join(members)})"
        case Chunk(_, item):
            return type_text(item)


def dim_text(dim: Expr) -> str:
    """A dim as its author writes it."""
    match dim:
        case Ref(_, name):
            return name.split("#")[0]
        case Lit(value):
            return str(value)
        case Unary(op, x):
            return f"{op}{dim_text(x)}"
        case Binary(op, a, b):
            left, right = (
                f"({dim_text(x)})" if isinstance(x, Binary) and op not in "+-" else dim_text(x) for x in (a, b)
            )
            return f"{left} {op} {right}"
        case _:
            return print_expr(dim)
