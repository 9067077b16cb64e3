"""The IR of one model: walks and request programs over what `declarations` holds. Control is structure (regions nest); values are SSA.

Spans never take part in equality, so moving a line changes no digest. `Value.name` is the pretty name that generated code and
dumps use; it is unique within its walk or request (`token`, `token_2`, ...).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mstarc.ir.declarations import Cache, Config, Context, ExternDecl, Let, Node, Param, Sampler, Stream
from mstarc.ir.types import Expr, Phase, Type, ValueId
from mstarc.source import NOWHERE, Span


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value. host values may drive control; device values only `stop when` and a stream's `where`."""

    id: ValueId
    name: str
    type: Type
    phase: Phase
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Block:
    """Operations in order; each may read what those before it and around it have bound."""

    ops: tuple[Op, ...] = ()


# ------------------------------------------------------------------------------------------------------------- operations


@dataclass(frozen=True, slots=True)
class Compute:
    """result = a pure expression. Host if every leaf is host, else an elementwise device computation."""

    result: Value
    expr: Expr
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Invoke:
    """results = node.op(args). A result that is never used (or bound to `_`) is None and is not computed.

    args are in the op's parameter order, one each; None = an optional parameter left out. `writes`, `reads` are contexts:
    an op that is neither frozen nor stateless writes `writes` (several = independent runs, the value is the first's); a
    frozen op reads `reads[0]`; an op with `cross` attends `reads[0]` as its cross-attention source.
    """

    node: str
    op: str
    args: tuple[Expr | None, ...]
    results: tuple[Value | None, ...]
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Sample:
    """result: i64 = one draw of the sampler. `site` names the drawing site for the RNG key (unique in the walk)."""

    sampler: str
    logits: Expr
    result: Value
    site: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Noise:
    """result = standard normal of the result's type; site = the target's name."""

    result: Value
    site: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Extern:
    """Typed Python on the host; device arguments are materialised (a region boundary); results are host values."""

    name: str
    args: tuple[Expr, ...]
    results: tuple[Value | None, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Carry:
    """init -> inner (the value at the top of the body) -> next (at its end); `result` is bound after the loop."""

    init: Expr
    inner: Value
    next: Expr
    result: Value


@dataclass(frozen=True, slots=True)
class Gather:
    """What `collect x as name` accumulates: bound after the loop, concatenated along dim 0."""

    name: str
    result: Value


@dataclass(frozen=True, slots=True)
class Loop:
    """kind `times`: static, host count. kind `max`: dynamic, ends at a `Stop` or after `bound` bodies."""

    label: str
    kind: Literal["times", "max"]
    bound: Expr
    carries: tuple[Carry, ...]
    gathers: tuple[Gather, ...]
    body: Block
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Stop:
    """`stop when cond` (a device bool or a host expression): ends the innermost loop here.

    `carried` are the values that the loop's carried names have at this point, in the loop's carry order: they become its results.
    """

    cond: Expr
    carried: tuple[Expr, ...] = ()
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Collect:
    """Append value to the innermost loop's Gather `name`."""

    value: Expr
    name: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Par:
    """`parallel { }`: asserts that its statements are independent; adds no order."""

    body: Block
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Phi:
    """inner is bound in the guarded block; result (of optional type) is what the code after it sees, absent if not taken."""

    inner: ValueId
    result: Value


@dataclass(frozen=True, slots=True)
class When:
    """A statement `... when cond` (host)."""

    cond: Expr
    body: Block
    results: tuple[Phi, ...] = ()
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Emit:
    """Emit value to the client as a modality, with attributes such as (`rate`, 24000)."""

    value: Expr
    modality: str
    attrs: tuple[tuple[str, Expr], ...] = ()
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Send:
    """`send value -> stream`: one item, which waits for room. Without a consumer in the same `together` it does nothing."""

    value: Expr
    stream: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Next:
    """results = one chunk of each stream, jointly; absent once the stream has ended if `after_end empty`."""

    streams: tuple[str, ...]
    results: tuple[Value | None, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ForChunks:
    """The body runs once per chunk; `items[i]` (type `Chunk`) is the chunk of `streams[i]`."""

    streams: tuple[str, ...]
    items: tuple[Value, ...]
    body: Block
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Fork:
    """`fork target from source`: target becomes a copy of source; neither sees what is written to the other later."""

    target: str
    source: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Drop:
    """`drop contexts`: they are empty again."""

    contexts: tuple[str, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


# ------------------------------------------------------------------------------------------- operations of request programs


@dataclass(frozen=True, slots=True)
class CallWalk:
    """results are the walk's outputs; they persist until their last use."""

    walk: str
    args: tuple[Expr, ...]
    results: tuple[Value | None, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class If:
    """`if cond { } else { }` of a request program (host)."""

    cond: Expr
    then: Block
    other: Block = Block()
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Case:
    """One `case NAME { }`; `item` is the part, narrowed to that type."""

    kind: str
    item: Value
    body: Block


@dataclass(frozen=True, slots=True)
class ForParts:
    """Over a list of parts. Without `case`, there is one Case with kind ""."""

    over: Expr
    cases: tuple[Case, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm of `together`; the label is the partition's name (`arm_1` if none was written)."""

    label: str
    body: Block


@dataclass(frozen=True, slots=True)
class Together:
    """Arms that run at the same time. It ends when all have."""

    arms: tuple[Arm, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Require:
    """Admission check; false = HTTP 400 with `text` (the source of the expression)."""

    cond: Expr
    text: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


Op: TypeAlias = (
    Compute
    | Invoke
    | Sample
    | Noise
    | Extern
    | Loop
    | Stop
    | Collect
    | Par
    | When
    | Emit
    | Send
    | Next
    | ForChunks
    | Fork
    | Drop
    | CallWalk
    | If
    | ForParts
    | Together
    | Require
)

# -------------------------------------------------------------------------------------------------------------------- model


@dataclass(frozen=True, slots=True)
class Output:
    """A result of a walk: the value that `return` names, of the declared type."""

    name: str
    type: Type
    value: ValueId


@dataclass(frozen=True, slots=True)
class Walk:
    """params may be host or device values, as their phase says."""

    name: str
    params: tuple[Value, ...]
    outputs: tuple[Output, ...]
    body: Block
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Request:
    """inputs are host values. outputs: (modality, optional)."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[tuple[str, bool], ...]
    body: Block
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Program:
    """One model, resolved and typed."""

    model: str
    configs: tuple[Config, ...] = ()
    params: tuple[Param, ...] = ()
    lets: tuple[Let, ...] = ()
    externs: tuple[ExternDecl, ...] = ()
    caches: tuple[Cache, ...] = ()
    contexts: tuple[Context, ...] = ()
    samplers: tuple[Sampler, ...] = ()
    nodes: tuple[Node, ...] = ()
    streams: tuple[Stream, ...] = ()
    walks: tuple[Walk, ...] = ()
    requests: tuple[Request, ...] = ()
    span: Span = field(default=NOWHERE, compare=False, repr=False)
