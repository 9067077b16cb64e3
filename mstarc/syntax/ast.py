"""The syntax tree: one frozen class a rule of the grammar. Every node has the byte span of its text; names have their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from mstarc.source import Span


@dataclass(frozen=True, slots=True)
class Name:
    """One identifier where it stands."""

    text: str
    span: Span


# ---------------------------------------------------------------------------------------------------------- expressions


@dataclass(frozen=True, slots=True)
class Number:
    value: int | float
    span: Span


@dataclass(frozen=True, slots=True)
class Text:
    value: str
    span: Span


@dataclass(frozen=True, slots=True)
class Bool:
    value: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Path:
    """`x`, `part.ids`, `llm.vocab_size`: at least one name."""

    names: tuple[Name, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Unary:
    op: Literal["-", "not"]
    x: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Binary:
    """op: + - * / // %  == != < <= > >=  and or."""

    op: str
    a: Expr
    b: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class IfThen:
    cond: Expr
    a: Expr
    b: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class ListOf:
    items: tuple[Arg, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Slice:
    low: Expr | None
    high: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class Sub:
    """base[indices]."""

    base: Expr
    indices: tuple[Expr | Slice, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Arg:
    """One argument; `name` if it is given by name."""

    value: Expr
    name: Name | None
    span: Span


@dataclass(frozen=True, slots=True)
class Access:
    """`reads C`, `writes C` or `writes (C, D)`."""

    word: Literal["reads", "writes"]
    contexts: tuple[Name, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Call:
    callee: Path
    args: tuple[Arg, ...]
    access: tuple[Access, ...]
    span: Span


Expr: TypeAlias = Number | Text | Bool | Path | Unary | Binary | IfThen | ListOf | Sub | Call

# ----------------------------------------------------------------------------------------------------------------- types


@dataclass(frozen=True, slots=True)
class NamedType:
    """`f32[N, 64]?`, `text`, `view`. `dims` is None without brackets."""

    name: Name
    dims: tuple[Expr, ...] | None
    optional: bool
    span: Span


@dataclass(frozen=True, slots=True)
class ListType:
    members: tuple[Name, ...]
    optional: bool
    span: Span


@dataclass(frozen=True, slots=True)
class EnumType:
    members: tuple[Name, ...]
    optional: bool
    span: Span


TypeExpr: TypeAlias = NamedType | ListType | EnumType


@dataclass(frozen=True, slots=True)
class PortDef:
    """`name: [host] type`."""

    name: Name
    type: TypeExpr
    host: bool
    span: Span


# ------------------------------------------------------------------------------------------------------------ statements


@dataclass(frozen=True, slots=True)
class Block:
    stmts: tuple[Stmt, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Assign:
    targets: tuple[Name, ...]
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Do:
    """A call for its effect."""

    call: Call
    span: Span


@dataclass(frozen=True, slots=True)
class Emit:
    value: Expr
    modality: Name
    attrs: tuple[Arg, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Send:
    value: Expr
    stream: Name
    span: Span


@dataclass(frozen=True, slots=True)
class Collect:
    value: Expr
    name: Name
    span: Span


@dataclass(frozen=True, slots=True)
class Fork:
    target: Name
    source: Name
    span: Span


@dataclass(frozen=True, slots=True)
class Drop:
    contexts: tuple[Name, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Require:
    """`text` is the source of the condition."""

    cond: Expr
    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Guarded:
    """`stmt when cond`."""

    stmt: Simple
    cond: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Stop:
    cond: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Carry:
    """`carry name = init`; without `init` the value in scope."""

    name: Name
    init: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class Loop:
    label: Name
    kind: Literal["times", "max"]
    bound: Expr
    carries: tuple[Carry, ...]
    body: Block
    span: Span


@dataclass(frozen=True, slots=True)
class Case:
    kind: Name
    body: Block
    span: Span


@dataclass(frozen=True, slots=True)
class For:
    """Over the chunks of streams (walks) or the parts of a list (requests). Either `body` or `cases` is there."""

    names: tuple[Name, ...]
    over: tuple[Expr, ...]
    body: Block | None
    cases: tuple[Case, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Parallel:
    body: Block
    span: Span


@dataclass(frozen=True, slots=True)
class Branch:
    """One arm of `together`."""

    label: Name | None
    body: Block
    span: Span


@dataclass(frozen=True, slots=True)
class Together:
    branches: tuple[Branch, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class If:
    cond: Expr
    then: Block
    other: Block | None
    span: Span


Simple: TypeAlias = Assign | Do | Emit | Send | Collect | Fork | Drop | Require
Stmt: TypeAlias = Simple | Guarded | Stop | Loop | For | Parallel | Together | If

# ---------------------------------------------------------------------------------------------------------- declarations


@dataclass(frozen=True, slots=True)
class Entry:
    """One `name = expr` of `config`."""

    name: Name
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Config:
    entries: tuple[Entry, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Param:
    name: Name
    type: TypeExpr
    low: Expr | None
    high: Expr | None
    default: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class Let:
    names: tuple[Name, ...]
    value: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class TypeDecl:
    name: Name
    fields: tuple[PortDef, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Extern:
    """`results` is one unnamed type or named ones."""

    name: Name
    params: tuple[PortDef, ...]
    results: TypeExpr | tuple[PortDef, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Cache:
    name: Name
    layout: Name
    args: tuple[Arg, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Context:
    names: tuple[Name, ...]
    cache: Name
    max: Expr | None
    when: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class Setting:
    """`name [= value [.. high]] [over C] [except e]` of a sampler."""

    name: Name
    value: Expr | None
    high: Expr | None
    over: Name | None
    exclude: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class Sampler:
    name: Name
    settings: tuple[Setting, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute of an op: `word`, then a clause value (`causal`, `at`, `pack`, a name) and expressions by clause word."""

    word: str
    value: Name | None
    exprs: tuple[tuple[str, Expr], ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Op:
    name: Name
    params: tuple[PortDef, ...]
    results: tuple[PortDef, ...]
    attrs: tuple[Attr, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class State:
    name: Name
    type: TypeExpr
    init: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Node:
    """kind: `transformer` with its cache in `of`, or `stateless` with the precision, if one is said."""

    name: Name
    kind: Literal["transformer", "stateless"]
    of: Name | None
    weights: Name | None
    ops: tuple[Op, ...]
    states: tuple[State, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Stream:
    name: Name
    type: TypeExpr
    where: Expr | None
    policy: Name
    args: tuple[Arg, ...]
    at_end: Name | None
    pad: Name | None
    after_end: Name | None
    overlap: Name | None
    capacity: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class Walk:
    name: Name
    params: tuple[PortDef, ...]
    results: tuple[PortDef, ...]
    body: Block
    span: Span


@dataclass(frozen=True, slots=True)
class Out:
    modality: Name
    optional: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Request:
    name: Name
    params: tuple[PortDef, ...]
    outputs: tuple[Out, ...]
    body: Block
    span: Span


Decl: TypeAlias = Config | Param | Let | TypeDecl | Extern | Cache | Context | Sampler | Node | Stream | Walk | Request


@dataclass(frozen=True, slots=True)
class Model:
    """A whole file. `complete` is false if a declaration could not be parsed and is missing from `decls`."""

    name: Name
    decls: tuple[Decl, ...]
    complete: bool
    span: Span
