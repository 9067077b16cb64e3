"""The linked program: what `mstarc` hands to the runtime for one plan and one placement, as JSON.

Frozen msgspec structs: `msgspec.json.decode(data, type=Linked)` checks every field. Expressions have been evaluated: a
linked program holds numbers, names and routes only.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mstarc_runtime.abi.formula import Formula


class PortLink(msgspec.Struct, frozen=True, kw_only=True):
    """One param or result of an op, or a result of an extern, as the spec declares it. dims: None where a length differs from call to call.

    dtype: of an extern's result also `int`, `float`, `bool`, `text`, `bytes`, `list` (of parts: `fields` are those that it may hold),
    `part` (of a `kind`, with `fields`), or "" for any.
    """

    name: str
    dtype: str
    dims: list[int | None] = []
    optional: bool = False
    kind: str = ""
    fields: list[PortLink] = []


class OpLink(msgspec.Struct, frozen=True, kw_only=True):
    """One op of a node. Param and result kinds are by port, in order.

    kind of a param: `scalar` (i64: [B] in a batch), `packed` (first dim free: concatenated), `plain` (fixed shape), `host`.
    takes: "" = derived from the one token argument; else a number "const:<n>", the param whose rows count "rows:<k>", or a
    formula (`abi.formula`). at: the offsets of `positions at`, a formula. advance: a number or a formula.
    """

    name: str
    params: list[str]
    results: int
    result_kinds: list[str] = []  # `row` or `packed` per result; empty = all `row`
    inputs: list[PortLink] = []  # the params that are tensors on the device, if all are; what a captured call must know
    outputs: list[PortLink] = []  # the results; empty = they are not checked
    optional: list[bool] = []
    attend: str = ""
    positions: str = ""
    at: Formula = None
    advance: int | Formula = None
    takes: str | Formula = ""
    frozen: bool = False
    cross: bool = False
    random: bool = False
    samples: str = ""
    batch: str = ""
    batch_max: int = 0


class StateLink(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that a node keeps per request. init: a number or truth value, or a formula over params."""

    name: str
    dtype: str
    dims: list[int] = []
    init: Formula = 0


class NodeLink(msgspec.Struct, frozen=True, kw_only=True):
    """One node and the class that implements it. `config` is the node's section of the YAML."""

    name: str
    kind: str  # transformer | stateless
    component: str  # dotted path of the class
    ops: list[OpLink]
    cache: str = ""
    checkpoint: str = ""
    weights: str = ""  # the node whose weights it has
    rules: list[dict[str, Any]] = []  # from tensors of the checkpoint to parameters (`mstarc_runtime.weights`)
    precision: str = ""  # "" = the device's choice
    states: list[StateLink] = []
    config: dict[str, Any] = {}


class CacheLink(msgspec.Struct, frozen=True, kw_only=True):
    """A KV geometry on the ranks that use it. pages of the pool, 0 = sized by the runtime; swap: how many more may lie on the host while
    the pool is full, None = sized by the runtime.
    """

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    pages: int = 0
    swap: int | None = None


class ContextLink(msgspec.Struct, frozen=True, kw_only=True):
    """max: the most entries it may hold (0 = unbounded by the spec)."""

    name: str
    cache: str
    max: int = 0


class SamplerLink(msgspec.Struct, frozen=True, kw_only=True):
    """Each setting is a number, a list of ids (`suppress`, `ends`), "param:<name>", or a formula over params."""

    name: str
    settings: dict[str, Any]
    over: str = ""


class StreamLink(msgspec.Struct, frozen=True, kw_only=True):
    """source and sink are ranks; args by name (`size`, `stride`, `chunk`, `left`, `max`; `cut` is an extern's name).

    capacity is a number, "param:<name>+<n>", or a formula over params. where: name of a generated predicate method, or "".
    """

    name: str
    policy: str
    args: dict[str, Any]
    capacity: int | str | Formula
    source: int
    sink: int
    at_end: str = ""
    after_end_empty: bool = False
    where: str = ""
    transport: str = "slot"  # slot (same rank) | shm


class ShapeLink(msgspec.Struct, frozen=True, kw_only=True):
    """A value with one shape in every request: the dtype as the language names it, and the dims."""

    dtype: str
    dims: list[int] = []


class LoopLink(msgspec.Struct, frozen=True, kw_only=True):
    """How its rank runs one loop of a walk, in launches of `unroll` iterations. whole: a static loop, which a launch can hold all of;
    `unroll` is then its number of steps for the defaults of the params.

    region: the generated method, "" = the walk's coroutine runs the loop; others: further ones, between which conditions of the host
    decide; carry, fixed: their arguments. fused: streams whose consumer
    is on the same rank and fires once a launch, so that items need not leave the device. ahead: how many iterations may begin before it
    is known that the loop has ended, None = as many as the worker likes; what one past the end did to the contexts and samplers of
    `rollback` is then cut off again.
    """

    walk: str
    label: str
    kind: str  # times | max
    region: str = ""
    others: list[str] = []
    carry: list[ShapeLink] = []
    fixed: list[ShapeLink] = []
    unroll: int = 1
    whole: bool = False
    fused: list[str] = []
    ahead: int | None = None
    rollback: list[str] = []


class WalkLink(msgspec.Struct, frozen=True, kw_only=True):
    """Which rank runs a walk, and which nodes, streams and contexts it touches. ranks: those that take part, if there are several."""

    name: str
    rank: int
    ranks: list[int] = []
    nodes: list[str] = []
    sends: list[str] = []
    takes: list[str] = []
    contexts: list[str] = []
    externs: list[str] = []  # that the walk calls on its rank


class CheckpointLink(msgspec.Struct, frozen=True, kw_only=True):
    """Where weights are: a file or folder inside an installed package, or a path. `sha256` "" = not checked."""

    name: str
    package: str = ""
    path: str = ""
    file: str = ""
    sha256: str = ""


class RankLink(msgspec.Struct, frozen=True, kw_only=True):
    """One process: its device, its threads (0: as many as suit), and what the placement calls it."""

    rank: int
    device: str = "cpu"
    threads: int = 1
    label: str = ""


class Linked(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `mstarc_runtime` needs to serve one model under one placement."""

    abi: int
    model: str
    package: str  # folder of the generated package
    digest: str
    ranks: list[RankLink]
    config: dict[str, Any]
    nodes: list[NodeLink]
    caches: list[CacheLink]
    contexts: list[ContextLink]
    samplers: list[SamplerLink]
    streams: list[StreamLink]
    walks: list[WalkLink]
    loops: list[LoopLink] = []
    externs: dict[str, str]  # name -> dotted path
    extern_results: dict[str, list[PortLink]] = {}
    checkpoints: list[CheckpointLink]
    modalities: dict[str, Any] = {}
    placement: str = ""
