"""A producer's loop and the consumer of its stream as one region: the producer is unrolled to the consumer's stride.

Takes a program; gives one `Fusion` per stream that a loop sends on and a `for ... in` takes from. One launch then holds `unroll` steps
of the producer and one firing of the consumer (Orpheus: 7 steps of the language model and one window of the codec), and the items
never leave the device. Rates: a loop that sends s items an iteration feeds a policy that pops P items a firing after
unroll = P / gcd(s, P) iterations, which is s * unroll / P firings. Under a stream's `where` fewer items may come: the device counts
them, and a launch fires as often as there are full chunks. That is never more: with at most P - 1 items left over from before,
floor((P - 1 + s * unroll) / P) = s * unroll / P. Whether both ends are on one rank is decided when a placement is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from mstarc.ir.core import Compute, Emit, ForChunks, Invoke, Loop, Program, Send, Walk
from mstarc.ir.declarations import Stream
from mstarc.ir.types import Apply, Expr, FieldOf, Ref, Tensor
from mstarc.ir.visit import every_expr, every_op, exprs_of
from mstarc.passes.check_streams import stream_policy
from mstarc.passes.effects import Names
from mstarc.passes.form_regions import form_regions
from mstarc.passes.ranges import Ranges
from mstarc.passes.speculate import speculation_of
from mstarc_runtime.abi.chunks import Phrase, Policy, pop


@dataclass(frozen=True, slots=True)
class Fusion:
    """A producer loop, a stream and its consumer. reasons: why they cannot be one region; then the numbers are 0.

    calls: `node.op` of one producer step, and of one firing. compacts: a `where` decides on the device which values are items.
    """

    stream: str
    producer: str  # walk
    loop: str
    consumer: str  # walk
    unroll: int = 0
    firings: int = 0
    step_calls: tuple[str, ...] = ()
    firing_calls: tuple[str, ...] = ()
    compacts: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def legal(self) -> bool:
        return not self.reasons


def vertical_of(program: Program) -> tuple[Fusion, ...]:
    """Every loop that sends on a stream, with every `for` that takes from it, in program order."""
    names, ranges = Names(program), Ranges(program)
    found = []
    for stream in program.streams:
        takers = [(walk, op) for walk in program.walks for op in every_op(walk.body) if _takes(op, stream.name)]
        for walk in program.walks:
            for loop in (op for op in every_op(walk.body) if isinstance(op, Loop) and _sends(op, stream.name)):
                for consumer, taker in takers:
                    assert isinstance(taker, ForChunks)
                    found.append(_fusion(stream, walk, loop, consumer, taker, names, ranges))
    return tuple(found)


def _takes(op: object, stream: str) -> bool:
    return isinstance(op, ForChunks) and stream in op.streams


def _sends(loop: Loop, stream: str) -> int:
    """Items of one iteration, those of inner loops aside."""
    return sum(isinstance(op, Send) and op.stream == stream for op in loop.body.ops)


def _fusion(
    stream: Stream, walk: Walk, loop: Loop, consumer: Walk, taker: ForChunks, names: Names, ranges: Ranges
) -> Fusion:
    policy = stream_policy(stream, ranges)
    reasons = (
        *_of_policy(stream, policy),
        *_of_producer(walk, loop, names),
        *_of_consumer(taker, names),
    )
    ends = (stream.name, walk.name, loop.label, consumer.name)
    if reasons or policy is None or isinstance(policy, Phrase):
        return Fusion(*ends, reasons=tuple(dict.fromkeys(reasons)))
    sent, step = _sends(loop, stream.name), pop(policy)
    unroll = step // gcd(sent, step)
    return Fusion(
        *ends,
        unroll=unroll,
        firings=sent * unroll // step,
        step_calls=_calls(loop),
        firing_calls=_calls(taker),
        compacts=stream.where is not None,
    )


def _calls(op: Loop | ForChunks) -> tuple[str, ...]:
    return tuple(f"{inner.node}.{inner.op}" for inner in every_op(op.body) if isinstance(inner, Invoke))


def _of_policy(stream: Stream, policy: Policy | None) -> Iterator[str]:
    if isinstance(policy, Phrase) or stream.policy == "phrase":
        yield f"where a phrase of `{stream.name}` ends is decided on the host"
    elif policy is None:
        yield f"the chunk size of `{stream.name}` is not known before a checkpoint is"


def _of_producer(walk: Walk, loop: Loop, names: Names) -> Iterator[str]:
    region = form_regions(walk, names.program).get(loop.label)
    if region is None:
        yield f"loop `{loop.label}` runs in its walk's coroutine, not on the device"
    elif region.ragged:
        yield f"values of loop `{loop.label}` differ in shape from request to request"
    for reason in speculation_of(walk, loop, names).reasons:
        yield f"loop `{loop.label}` may not run ahead: {reason}"


def _of_consumer(taker: ForChunks, names: Names) -> Iterator[str]:
    """A firing is straight device work of one shape that touches nothing but what it is given."""
    if len(taker.streams) > 1:
        yield f"it fires only when each of {', '.join(f'`{name}`' for name in taker.streams)} has a chunk"
    stream = names.streams[taker.streams[0]]
    growing = stream.policy == "left_context"
    for op in taker.body.ops:
        match op:
            case Invoke():
                yield from _of_call(op, names, growing)
            case Compute() | Emit():
                if any(_counted(expr) for expr in exprs_of(op)):
                    yield f"the consumer of `{stream.name}` cuts by a number of the chunk, which the host counts"
            case _:
                yield f"a `{type(op).__name__.lower()}` stands in the consumer of `{stream.name}`"


def _of_call(op: Invoke, names: Names, growing: bool) -> Iterator[str]:
    node, declared = names.nodes.get(op.node), names.op(op)
    if node is None or declared is None:
        return
    if op.writes or op.reads or node.states:
        yield f"`{op.node}.{op.op}` uses a context or a state of its own"
    if any(port.host for port in declared.params):
        yield f"`{op.node}.{op.op}` takes a host value"
    free = any(isinstance(p.type, Tensor) and _free(p.type) for p in declared.params)
    if free and not growing:
        yield f"`{op.node}.{op.op}` takes chunks of any length"


def _free(kind: Tensor) -> bool:
    return any(isinstance(part, Ref) and part.scope == "dim" for dim in kind.dims for part in every_expr(dim))


def _counted(expr: Expr) -> bool:
    """Whether the expression needs a number of the chunk that is not the same in every full chunk."""
    if isinstance(expr, Apply) and expr.fn == "last":
        return False  # new items of a full chunk after the first: always the stride
    return any(isinstance(part, FieldOf) and part.name in ("index", "first", "tail") for part in every_expr(expr))


def say_vertical(program: Program, facts: tuple[Fusion, ...]) -> Iterator[str]:
    """One line for each pair."""
    for fact in facts:
        ends = f"loop {fact.producer}.{fact.loop} -> {fact.stream} -> walk {fact.consumer}"
        if not fact.legal:
            yield f"{ends}: two regions: {'; '.join(fact.reasons)}"
            continue
        counted = ", items counted on the device" if fact.compacts else ""
        yield f"{ends}: one region of {fused_text(fact)}{counted}"


def fused_text(fact: Fusion) -> str:
    """`7 llm.step + 1 snac.decode`."""
    counts = Counter(fact.step_calls * fact.unroll) + Counter(fact.firing_calls * fact.firings)
    return " + ".join(f"{count} {name}" for name, count in counts.items())
