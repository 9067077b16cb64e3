"""What one model declares beside its walks and requests: constants, params, host functions, caches, nodes and streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mstarc.ir.types import Expr, Type
from mstarc.source import NOWHERE, Span


@dataclass(frozen=True, slots=True)
class Config:
    """A compile-time constant. `path` (`llm.vocab_size`) is read from the YAML's `config:` section or the checkpoint; else `expr`."""

    name: str
    path: str = ""
    expr: Expr | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Param:
    """Per request. low/high are inclusive; no default = required."""

    name: str
    type: Type
    low: Expr | None = None
    high: Expr | None = None
    default: Expr | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Let:
    """A name for a host expression over configs, params and the inputs of a request."""

    name: str
    expr: Expr
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Port:
    """A parameter or output of an op or extern."""

    name: str
    type: Type
    host: bool = False


@dataclass(frozen=True, slots=True)
class ExternDecl:
    name: str
    params: tuple[Port, ...]
    results: tuple[Port, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Cache:
    """A paged KV geometry."""

    name: str
    layers: Expr
    heads: Expr
    kv_heads: Expr
    head_dim: Expr
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Context:
    """Keys and values of one request in the geometry `cache`. max: entries; when: who has it at all (host), else everybody."""

    name: str
    cache: str
    max: Expr | None = None
    when: Expr | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Sampler:
    """settings: temperature top_k top_p repetition_penalty min_tokens ends suppress suppress_first, in declaration order.

    A bare name is the param of that name. `over` is the context whose ids count for the repetition penalty besides own draws.
    """

    name: str
    settings: tuple[tuple[str, Expr], ...]
    over: str = ""
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class OpAttrs:
    """The attributes of an op, as written: "", None and False are what was left out.

    at: where its entries stand, from the counter of positions on (`positions at`); advance: what a call adds to that counter; takes:
    entries that a call appends; samples: the sampler that its method draws with; batch_max: rows of one call; graph_low, graph_high:
    the sizes of captured graphs.
    """

    attend: Literal["", "causal", "full"] = ""
    positions: Literal["", "seq", "same", "at"] = ""
    at: Expr | None = None
    advance: Expr | None = None
    takes: Expr | None = None
    frozen: bool = False
    cross: bool = False
    random: bool = False
    samples: str = ""
    batch: Literal["", "pack", "stack"] = ""
    batch_max: Expr | None = None
    graph: str = ""
    graph_low: Expr | None = None
    graph_high: Expr | None = None
    async_off: bool = False


@dataclass(frozen=True, slots=True)
class OpDecl:
    """One op of a node."""

    name: str
    params: tuple[Port, ...]
    results: tuple[Port, ...]
    attrs: OpAttrs
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class State:
    """`state name: type = init`: a cell of a node that a request keeps from call to call."""

    name: str
    type: Type
    init: Expr
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Node:
    """kind `transformer` (on `cache`) or `stateless` (precision `""`, `fp32`, ...). `weights` names the node it shares with."""

    name: str
    kind: Literal["transformer", "stateless"]
    cache: str = ""
    precision: str = ""
    weights: str = ""
    ops: tuple[OpDecl, ...] = ()
    states: tuple[State, ...] = ()
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Stream:
    """policy: fixed(size) | sliding_window(size, stride) | left_context(chunk, left) | phrase(cut, max): args by name.

    For `phrase`, args hold (`cut`, Lit(extern name)) and (`max`, K). `where` is an expression over `Ref("dim", "item")`.
    at_end: "" drop partial pad:zero pad:repeat.
    """

    name: str
    item: Type
    policy: Literal["fixed", "sliding_window", "left_context", "phrase"]
    args: tuple[tuple[str, Expr], ...]
    capacity: Expr
    where: Expr | None = None
    at_end: str = ""
    after_end_empty: bool = False
    overlap_ok: bool = False
    span: Span = field(default=NOWHERE, compare=False, repr=False)
