"""Types and expressions of the IR. Dims and host control are `Expr` trees; a device expression is one with a device `Var`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NewType, TypeAlias

ValueId = NewType("ValueId", int)  # dense, in definition order, per walk or request
Phase: TypeAlias = Literal["host", "device"]
DTYPES = ("f32", "bf16", "f16", "i64", "i32", "u8", "bool")
SCALARS = ("int", "float", "bool", "text", "bytes")
MODALITIES = ("text", "image", "audio", "video", "action", "scalar", "tensor")

# ---------------------------------------------------------------------------------------------------------------- expressions


@dataclass(frozen=True, slots=True)
class Lit:
    """A literal: bool, int, float or str."""

    value: bool | int | float | str


@dataclass(frozen=True, slots=True)
class Ref:
    """A host name that is not an SSA value.

    scope: `config`, `param`, `let` (name), `dim` (a free dim of the walk or op), `iter` (name = the loop's label),
    `member` (an enum member).
    """

    scope: Literal["config", "param", "let", "dim", "iter", "member"]
    name: str


@dataclass(frozen=True, slots=True)
class Var:
    """An SSA value of the enclosing walk or request."""

    id: ValueId


@dataclass(frozen=True, slots=True)
class Unary:
    """-x, or not x."""

    op: Literal["-", "not"]
    x: Expr


@dataclass(frozen=True, slots=True)
class Binary:
    """op: + - * / // %  == != < <= > >=  and or."""

    op: str
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class IfThen:
    """if cond then a else b."""

    cond: Expr
    a: Expr
    b: Expr


@dataclass(frozen=True, slots=True)
class Apply:
    """A built-in: given wants present last linspace shift guide len min max."""

    fn: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """base[i], or base[lo:hi] as `Slice` indices."""

    base: Expr
    indices: tuple[Expr | Slice, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """lo:hi of an `Index`; None where an end is left out."""

    low: Expr | None
    high: Expr | None


@dataclass(frozen=True, slots=True)
class FieldOf:
    """Field of a part (`part.ids`) or of a chunk handle (`chunk.new`, `.first`, `.index`, `.tail`)."""

    base: Expr
    name: str


@dataclass(frozen=True, slots=True)
class ListOf:
    """[items]."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """lo..hi inclusive, in a sampler's suppress list; `exclude` are the ids kept."""

    low: Expr
    high: Expr
    exclude: Expr | None = None


Expr: TypeAlias = Lit | Ref | Var | Unary | Binary | IfThen | Apply | Index | FieldOf | ListOf | Range

# ---------------------------------------------------------------------------------------------------------------------- types


@dataclass(frozen=True, slots=True)
class Tensor:
    """dtype[dims]; a scalar has no dims. Dims are host expressions; a free dim is `Ref("dim", name)`."""

    dtype: str
    dims: tuple[Expr, ...] = ()
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Scalar:
    """A host-only scalar: int float bool text bytes."""

    name: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Enum:
    """enum(members): one of these words."""

    members: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Media:
    """A request input of a modality: image audio video (text is `Scalar("text")`)."""

    modality: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Struct:
    """A declared `type`; `fields` are (name, type)."""

    name: str
    fields: tuple[tuple[str, Type], ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Parts:
    """list(a | b): an ordered list of parts of the named kinds (modalities or declared types)."""

    members: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """What `for c in s` binds: one item (`fixed(1)`), or items stacked on a new dim 0, with the fields of a chunk."""

    stream: str
    item: Type


Type: TypeAlias = Tensor | Scalar | Enum | Media | Struct | Parts | Chunk
