"""`plan.json`: its tables as frozen structs, its bytes, and reading it back.

Expressions and types are text in the IR's form (`mstarc.ir.text`), so that link can evaluate them with a checkpoint's config. The
JSON is deterministic: keys sorted, indented by two, one newline at the end.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

FORMAT = 1
NAME = "plan.json"


class PlanError(ValueError):
    """A plan that cannot be read. The message names the file and what is wrong; `at` is the character where, if that is known."""

    def __init__(self, what: str, at: int | None = None) -> None:
        super().__init__(what)
        self.at = at


class SpecPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where the model is written: paths relative to the package; digest of the text of both files."""

    path: str
    binding: str
    digest: str


class ConfigPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A constant: at `path` of the configuration, else `expr`."""

    name: str
    path: str = ""
    expr: str = ""


class ParamPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A param with its range, both ends included, and its default; "" is none."""

    name: str
    type: str
    low: str = ""
    high: str = ""
    default: str = ""


class CachePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A geometry of keys and values, as expressions."""

    name: str
    layers: str
    heads: str
    kv_heads: str
    head_dim: str


class ContextPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A context of a cache. max: entries; when: who has it."""

    name: str
    cache: str
    max: str = ""
    when: str = ""


class SamplerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A sampler: expressions by setting. over: the context whose ids count as drawn, or ""."""

    name: str
    settings: dict[str, str]
    over: str = ""


class PortPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter or result of an op."""

    name: str
    type: str
    host: bool = False


class OpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An op and its attributes, as `mstarc.ir.declarations.OpAttrs` says; "" is none."""

    name: str
    params: list[PortPlan]
    results: list[PortPlan]
    attend: str = ""
    positions: str = ""
    at: str = ""
    advance: str = ""
    takes: str = ""
    frozen: bool = False
    cross: bool = False
    random: bool = False
    samples: str = ""
    batch: str = ""
    batch_max: str = ""


class StatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A cell of a node."""

    name: str
    type: str
    init: str


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A node and its ops. weights: the node whose weights it has, or ""."""

    name: str
    kind: str
    ops: list[OpPlan]
    cache: str = ""
    precision: str = ""
    weights: str = ""
    states: list[StatePlan] = []


class StreamPlan(msgspec.Struct, frozen=True, kw_only=True):
    """args: expressions, or the quoted name of an extern. where: the name of the generated predicate, or ""."""

    name: str
    item: str
    policy: str
    args: dict[str, str]
    capacity: str
    at_end: str = ""
    after_end_empty: bool = False
    where: str = ""


class PhasePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which the conditions over `iter` of a static loop come out, and the calls of such a step."""

    holds: list[bool]
    calls: list[str]


class BarPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An effect of a loop's body that nothing undoes, and its line in the spec. early: above the loop's first check of its end."""

    text: str
    line: int
    early: bool = False


class LoopPlan(msgspec.Struct, frozen=True, kw_only=True):
    """region: the method that runs it for many requests, or "" if the walk's coroutine does; carry, fixed: the types of its arguments,
    none if it is ragged: its values are kept request by request then. others: further methods, where conditions of the host decide between
    them.

    checks: its `stop when` on device values; without one its end is known before it starts. ahead: iterations may run before it is
    known that it has ended, and `rollback` says what is cut back then (contexts, samplers); else `bars` say what forbids it.
    whole: a static loop that can be one launch, in `phases` by `conditions` over `iter`. apart: why it may not run ahead, or is not
    one launch.
    """

    label: str
    kind: str
    bound: str
    region: str = ""
    others: list[str] = []
    carry: list[str] = []
    fixed: list[str] = []
    ragged: bool = False
    checks: int = 0
    ahead: bool = False
    rollback: list[str] = []
    bars: list[BarPlan] = []
    whole: bool = False
    conditions: list[str] = []
    variants: list[str] = []
    phases: list[PhasePlan] = []
    apart: list[str] = []


class FusionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A loop, a stream that it sends on, and the walk that takes from it: one launch of `unroll` steps and `firings` firings.

    apart: why they cannot be one launch, on any placement; then the numbers are 0.
    """

    stream: str
    producer: str
    loop: str
    consumer: str
    unroll: int = 0
    firings: int = 0
    step_calls: list[str] = []
    firing_calls: list[str] = []
    compacts: bool = False
    apart: list[str] = []


class WalkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Names are sorted. line: where the spec says it (the source map). body: the walk in the IR's text form.

    before: walks that may have run in a request when this one starts. usual: host parameters whose size the binding's `cost` section
    tells, for examples.
    """

    name: str
    line: int
    nodes: list[str] = []
    sends: list[str] = []
    takes: list[str] = []
    contexts: list[str] = []
    samplers: list[str] = []
    externs: list[str] = []
    loops: list[LoopPlan] = []
    body: list[str] = []
    before: list[str] = []
    usual: dict[str, str] = {}


class RequestPlan(msgspec.Struct, frozen=True, kw_only=True):
    """chains: walks that follow each other without a decision of the host; `*` repeated, `?` conditional; after a last `together` its
    arms follow too.
    """

    name: str
    line: int
    inputs: dict[str, str]
    outputs: list[str]
    chains: list[list[str]] = []


class BindingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The YAML beside the spec: what stands for the checkpoint's config, and which Python implements what."""

    config: dict[str, dict[str, Any]] = {}
    checkpoints: dict[str, dict[str, Any]] = {}
    components: dict[str, dict[str, Any]] = {}
    externs: dict[str, str] = {}
    modalities: dict[str, Any] = {}
    chat: dict[str, Any] = {}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One model. files: sha256 of each generated file, which tells a stale package from one that was edited by hand."""

    format: int
    abi: int
    compiler: str
    model: str
    spec: SpecPlan
    files: dict[str, str] = {}
    binding: BindingPlan
    configs: list[ConfigPlan] = []
    params: list[ParamPlan] = []
    caches: list[CachePlan] = []
    contexts: list[ContextPlan] = []
    lets: dict[str, str] = {}
    samplers: list[SamplerPlan] = []
    nodes: list[NodePlan] = []
    streams: list[StreamPlan] = []
    walks: list[WalkPlan] = []
    fusions: list[FusionPlan] = []
    requests: list[RequestPlan] = []
    extern_results: dict[str, list[PortPlan]] = {}  # by extern
    parts: dict[str, str] = {}  # declared types that values have, by name


def sha256_of(*texts: str) -> str:
    """Digest of texts; their lengths take part, so moving a boundary changes it."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode()
        digest.update(f"{len(data)}:".encode() + data)
    return digest.hexdigest()


def to_text(plan: Plan) -> str:
    """plan.json, byte for byte the same for equal plans."""
    return json.dumps(msgspec.to_builtins(plan), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def from_text(text: str, name: str = NAME) -> Plan:
    """The plan that a text is. Raises PlanError naming the place."""
    try:
        version = json.loads(text).get("format")
    except (ValueError, AttributeError) as error:
        raise PlanError(f"{name} is not a plan: {error}", getattr(error, "pos", None)) from None
    except RecursionError:
        raise PlanError(f"{name} is not a plan: it is nested too deeply") from None
    if version != FORMAT:
        raise PlanError(f"{name} has format {version}, this compiler reads {FORMAT}: compile the spec again")
    try:
        return msgspec.json.decode(text, type=Plan)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PlanError(f"{name}: {error}") from None


def read_plan(folder: Path) -> Plan:
    """The plan of a generated package. Raises PlanError."""
    path = folder / NAME
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise PlanError(f"{folder} holds no generated package: {path} is no file")
    try:
        return from_text(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise PlanError(f"{folder} holds no generated package: {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise PlanError(f"{path} is not UTF-8 text") from None
