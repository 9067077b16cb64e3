"""The syntax tree: one frozen class a rule of the grammar. Every node has the byte span of its text; names have their own."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from mstarc.source import Span


class Name(Struct, frozen=True):
    """One identifier where it stands."""

    text: str
    span: Span


# ---------------------------------------------------------------------------------------------------------- expressions


class Number(Struct, frozen=True):
    value: int | float
    span: Span


class Text(Struct, frozen=True):
    value: str
    span: Span


class Bool(Struct, frozen=True):
    value: bool
    span: Span


class Path(Struct, frozen=True):
    """`x`, `part.ids`, `llm.vocab_size`: at least one name."""

    names: tuple[Name, ...]
    span: Span


class Unary(Struct, frozen=True):
    op: Literal["-", "not"]
    x: Expr
    span: Span


class Binary(Struct, frozen=True):
    """op: + - * / // %  == != < <= > >=  and or."""

    op: str
    a: Expr
    b: Expr
    span: Span


class IfThen(Struct, frozen=True):
    cond: Expr
    a: Expr
    b: Expr
    span: Span


class ListOf(Struct, frozen=True):
    items: tuple[Arg, ...]
    span: Span


class Slice(Struct, frozen=True):
    low: Expr | None
    high: Expr | None
    span: Span


class Sub(Struct, frozen=True):
    """base[indices]."""

    base: Expr
    indices: tuple[Expr | Slice, ...]
    span: Span


class Arg(Struct, frozen=True):
    """One argument; `name` if it is given by name."""

    value: Expr
    name: Name | None
    span: Span


class Access(Struct, frozen=True):
    """`reads C`, `writes C` or `writes (C, D)`."""

    word: Literal["reads", "writes"]
    contexts: tuple[Name, ...]
    span: Span


class Call(Struct, frozen=True):
    callee: Path
    args: tuple[Arg, ...]
    access: tuple[Access, ...]
    span: Span


Expr: TypeAlias = Number | Text | Bool | Path | Unary | Binary | IfThen | ListOf | Sub | Call

# ----------------------------------------------------------------------------------------------------------------- types


class NamedType(Struct, frozen=True):
    """`f32[N, 64]?`, `text`, `view`. `dims` is None without brackets."""

    name: Name
    dims: tuple[Expr, ...] | None
    optional: bool
    span: Span


class ListType(Struct, frozen=True):
    members: tuple[Name, ...]
    optional: bool
    span: Span


class EnumType(Struct, frozen=True):
    members: tuple[Name, ...]
    optional: bool
    span: Span


TypeExpr: TypeAlias = NamedType | ListType | EnumType


class PortDef(Struct, frozen=True):
    """`name: [host] type`."""

    name: Name
    type: TypeExpr
    host: bool
    span: Span


# ------------------------------------------------------------------------------------------------------------ statements


class Block(Struct, frozen=True):
    stmts: tuple[Stmt, ...]
    span: Span


class Assign(Struct, frozen=True):
    targets: tuple[Name, ...]
    value: Expr
    span: Span


class Do(Struct, frozen=True):
    """A call for its effect."""

    call: Call
    span: Span


class Emit(Struct, frozen=True):
    value: Expr
    modality: Name
    attrs: tuple[Arg, ...]
    span: Span


class Send(Struct, frozen=True):
    value: Expr
    stream: Name
    span: Span


class Collect(Struct, frozen=True):
    value: Expr
    name: Name
    span: Span


class Fork(Struct, frozen=True):
    target: Name
    source: Name
    span: Span


class Drop(Struct, frozen=True):
    contexts: tuple[Name, ...]
    span: Span


class Require(Struct, frozen=True):
    """`text` is the source of the condition."""

    cond: Expr
    text: str
    span: Span


class Guarded(Struct, frozen=True):
    """`stmt when cond`."""

    stmt: Simple
    cond: Expr
    span: Span


class Stop(Struct, frozen=True):
    cond: Expr
    span: Span


class Carry(Struct, frozen=True):
    """`carry name = init`; without `init` the value in scope."""

    name: Name
    init: Expr | None
    span: Span


class Loop(Struct, frozen=True):
    label: Name
    kind: Literal["times", "max"]
    bound: Expr
    carries: tuple[Carry, ...]
    body: Block
    span: Span


class Case(Struct, frozen=True):
    kind: Name
    body: Block
    span: Span


class For(Struct, frozen=True):
    """Over the chunks of streams (walks) or the parts of a list (requests). Either `body` or `cases` is there."""

    names: tuple[Name, ...]
    over: tuple[Expr, ...]
    body: Block | None
    cases: tuple[Case, ...]
    span: Span


class Parallel(Struct, frozen=True):
    body: Block
    span: Span


class Branch(Struct, frozen=True):
    """One arm of `together`."""

    label: Name | None
    body: Block
    span: Span


class Together(Struct, frozen=True):
    branches: tuple[Branch, ...]
    span: Span


class If(Struct, frozen=True):
    cond: Expr
    then: Block
    other: Block | None
    span: Span


Simple: TypeAlias = Assign | Do | Emit | Send | Collect | Fork | Drop | Require
Stmt: TypeAlias = Simple | Guarded | Stop | Loop | For | Parallel | Together | If

# ---------------------------------------------------------------------------------------------------------- declarations


class Entry(Struct, frozen=True):
    """One `name = expr` of `config`."""

    name: Name
    value: Expr
    span: Span


class Config(Struct, frozen=True):
    entries: tuple[Entry, ...]
    span: Span


class Param(Struct, frozen=True):
    name: Name
    type: TypeExpr
    low: Expr | None
    high: Expr | None
    default: Expr | None
    span: Span


class Let(Struct, frozen=True):
    names: tuple[Name, ...]
    value: Expr
    span: Span


class TypeDecl(Struct, frozen=True):
    name: Name
    fields: tuple[PortDef, ...]
    span: Span


class Extern(Struct, frozen=True):
    """`results` is one unnamed type or named ones."""

    name: Name
    params: tuple[PortDef, ...]
    results: TypeExpr | tuple[PortDef, ...]
    span: Span


class Cache(Struct, frozen=True):
    name: Name
    layout: Name
    args: tuple[Arg, ...]
    span: Span


class Context(Struct, frozen=True):
    names: tuple[Name, ...]
    cache: Name
    max: Expr | None
    when: Expr | None
    span: Span


class Setting(Struct, frozen=True):
    """`name [= value [.. high]] [over C] [except e]` of a sampler."""

    name: Name
    value: Expr | None
    high: Expr | None
    over: Name | None
    exclude: Expr | None
    span: Span


class Sampler(Struct, frozen=True):
    name: Name
    settings: tuple[Setting, ...]
    span: Span


class Attr(Struct, frozen=True):
    """One attribute of an op: `word`, then a clause value (`causal`, `at`, `pack`, a name) and expressions by clause word."""

    word: str
    value: Name | None
    exprs: tuple[tuple[str, Expr], ...]
    span: Span


class Op(Struct, frozen=True):
    name: Name
    params: tuple[PortDef, ...]
    results: tuple[PortDef, ...]
    attrs: tuple[Attr, ...]
    span: Span


class State(Struct, frozen=True):
    name: Name
    type: TypeExpr
    init: Expr
    span: Span


class Node(Struct, frozen=True):
    """kind: `transformer` with its cache in `of`, or `stateless` with the precision, if one is said."""

    name: Name
    kind: Literal["transformer", "stateless"]
    of: Name | None
    weights: Name | None
    ops: tuple[Op, ...]
    states: tuple[State, ...]
    span: Span


class Stream(Struct, frozen=True):
    """`stream NAME : TYPE [where E] by POLICY(args) [at_end A[(PAD)]] [after_end B] [overlap C] capacity E`."""

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


class Walk(Struct, frozen=True):
    name: Name
    params: tuple[PortDef, ...]
    results: tuple[PortDef, ...]
    body: Block
    span: Span


class Out(Struct, frozen=True):
    modality: Name
    optional: bool
    span: Span


class Request(Struct, frozen=True):
    name: Name
    params: tuple[PortDef, ...]
    outputs: tuple[Out, ...]
    body: Block
    span: Span


Decl: TypeAlias = Config | Param | Let | TypeDecl | Extern | Cache | Context | Sampler | Node | Stream | Walk | Request


class Model(Struct, frozen=True):
    """A whole file. `lost`: the words of declarations that could not be parsed and are missing from `decls`."""

    name: Name
    decls: tuple[Decl, ...]
    lost: frozenset[str]
    span: Span

    @property
    def complete(self) -> bool:
        """Whether all declarations were parsed: none is without words."""
        return not self.lost
