"""Stream declarations: MC401, MC404, MC405, MC406, MC408, and MC402, MC403 of streams that are taken together.

Takes a program; reports to the collector. The formulas are those of `abi.chunks`; whether arms can make progress is
`check_schedule`'s part, and what overlapping chunks may do is `check_overlap`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label, Rule
from mstarc.ir.core import ForChunks, Next, Program
from mstarc.ir.declarations import Stream
from mstarc.ir.text.expressions import shown
from mstarc.ir.types import Expr
from mstarc.ir.visit import every_op
from mstarc.passes.effects import Names
from mstarc.passes.item_counts import exact_items, most_items
from mstarc.passes.ranges import Ranges
from mstarc_runtime.abi.chunks import (
    Fixed,
    LeftContext,
    Phrase,
    Policy,
    SlidingWindow,
    aligned,
    capacity_sum,
    firings,
    fresh_tail,
    least_capacity,
    peek,
    policy_of,
    pop,
    tail_possible,
)

_NEEDED = {
    "fixed": ("size",),
    "sliding_window": ("size", "stride"),
    "left_context": ("chunk", "left"),
    "phrase": ("max",),
}


def check_streams(program: Program, report: Collector) -> None:
    """Every stream by itself, then the streams that one statement takes together."""
    ranges = Ranges(program)
    policies: dict[str, Policy] = {}
    for stream in program.streams:
        policy = stream_policy(stream, ranges, report)
        _check_capacity(stream, policy, ranges, report)
        if policy is not None:
            policies[stream.name] = policy
            most = most_items(stream.name, program, ranges)
            _check_tail(stream, policy, program, ranges, report)
            _check_fills(stream, policy, most, report)
    _check_joint(program, policies, report)


def stream_policy(stream: Stream, ranges: Ranges, report: Collector | None = None) -> Policy | None:
    """The policy with its numbers put in; None if they are out of range (MC401) or not known before link."""
    numbers: dict[str, int] = {}
    args = dict(stream.args)
    for name in _NEEDED[stream.policy]:
        found = ranges.of(args[name]) if name in args else None
        value = found.exact if found is not None else None
        if value is None or int(value) != value:
            if found is not None and not found.sized and report is not None:
                _not_constant(stream, name, args[name], report)
            return None
        numbers[name] = int(value)
    try:
        policy = policy_of(stream.policy, numbers)
    except ValueError as error:
        if report is not None:
            report.report(rules.MC401, f"stream `{stream.name}`: {error}", stream.span, subject=stream.name)
        return None
    if isinstance(policy, Phrase) and stream.at_end.startswith("pad") and report is not None:
        message = f"stream `{stream.name}` pads phrases, which have no fixed length"
        report.report(
            rules.MC401, message, stream.span, subject=stream.name, help="say `at_end partial` or `at_end drop`"
        )
    return policy


def _not_constant(stream: Stream, name: str, value: Expr, report: Collector) -> None:
    message = f"`{name} = {shown(value)}` of stream `{stream.name}` is not one whole number"
    help_text = "chunk sizes are constants or config values, since a buffer is planned for them"
    report.report(rules.MC401, message, stream.span, subject=stream.name, help=help_text)


def _check_capacity(stream: Stream, policy: Policy | None, ranges: Ranges, report: Collector) -> None:
    """MC405: the capacity has a range from 1 up; MC404: its low end holds the largest chunk."""
    found = ranges.of(stream.capacity)
    text = shown(stream.capacity)
    if found.low == -inf or (found.high == inf and not found.sized):
        message = f"the capacity `{text}` of stream `{stream.name}` has no provable range"
        note = "a fast producer and a slow consumer would meet in the allocator"
        report.report(rules.MC405, message, stream.span, subject=stream.name, notes=(note,))
        return
    least = least_capacity(policy) if policy is not None else 1
    if found.low >= least or found.sized:
        return
    sum_text = capacity_sum(policy) if policy is not None else "1"
    value = f"{text}" if found.exact is not None else f"`{text}`, which can be {found.low},"
    report.report(
        rules.MC404,
        f"capacity {value} of stream `{stream.name}` is below {sum_text}",
        stream.span,
        f"the largest chunk does not fit into {found.low}",
        subject=stream.name,
        notes=("the producer would wait for room, and the consumer for the item that is missing",),
        help=f"declare `capacity {least}` or more",
    )


def _check_tail(stream: Stream, policy: Policy, program: Program, ranges: Ranges, report: Collector) -> None:
    """MC406: what an incomplete chunk becomes is declared unless the number of items rules one out."""
    if stream.at_end or not tail_possible(policy):
        return
    total = exact_items(stream.name, program, ranges)
    if total is not None and not isinstance(policy, Phrase) and fresh_tail(policy, total) == 0:
        return
    least = peek(policy, 0) - 1
    left = least if isinstance(policy, Phrase) else fresh_tail(policy, total if total is not None else least)
    items = total if total is not None else least
    message = f"stream `{stream.name}` does not say what becomes of items that fill no chunk"
    note = f"{items} item{'s' * (items != 1)} would leave {left} that no full chunk holds"
    report.report(
        rules.MC406,
        message,
        stream.span,
        subject=stream.name,
        notes=(note,),
        help="add `at_end drop`, `at_end partial` or `at_end pad(zero)`",
    )


def _check_fills(stream: Stream, policy: Policy, most: float, report: Collector) -> None:
    """MC408: the most items that can be sent reach the first full chunk."""
    if isinstance(policy, Phrase) or most == 0 or most >= peek(policy, 0):
        return
    message = f"stream `{stream.name}` never fills a chunk: at most {most:.0f} items are sent, a chunk takes {peek(policy, 0)}"
    report.report(rules.MC408, message, stream.span, subject=stream.name, help="every request would take the tail path")


# ----------------------------------------------------------------------------------------------- streams taken together


def joint_takes(program: Program) -> Iterator[Next | ForChunks]:
    """Every statement that takes from several streams at once."""
    for walk in program.walks:
        for op in every_op(walk.body):
            if isinstance(op, (Next, ForChunks)) and len(op.streams) > 1:
                yield op


def _check_joint(program: Program, policies: dict[str, Policy], report: Collector) -> None:
    """MC402, MC403: streams that fire together have policies that agree for every number of items."""
    names = Names(program)
    for op in joint_takes(program):
        first, *others = [s for s in op.streams if s in policies]
        for other in others:
            a, b = policies[first], policies[other]
            ends = names.streams[first], names.streams[other]
            if not aligned(a, b):
                _report_rates(op, ends, (a, b), report)
            elif tail_possible(a) and (ends[0].at_end or "drop") != (ends[1].at_end or "drop"):
                message = f"`{first}` and `{other}` are taken together but end differently: `{ends[0].at_end}` and `{ends[1].at_end}`"
                _report(
                    rules.MC403, op, ends, message, "one of them would have a last chunk that the other lacks", report
                )


def _report_rates(
    op: Next | ForChunks, ends: tuple[Stream, Stream], both: tuple[Policy, Policy], report: Collector
) -> None:
    """Two counts for a concrete N: unequal rates drift apart (MC402), equal rates stay a chunk apart (MC403)."""
    a, b = both
    first, other = ends[0].name, ends[1].name
    if isinstance(a, Phrase) or isinstance(b, Phrase):
        note = "the length of a phrase depends on its items, so two streams never cut alike for certain"
        message = f"`{first}` and `{other}` are taken together, but the chunks of a phrase have no fixed size"
        _report(rules.MC403, op, ends, message, note, report)
        return
    items = next(n for n in range(1, 10_000) if firings(a, n) != firings(b, n) or n > 9_000)
    note = f"after {items} items each, `{first}` has given {firings(a, items)} full chunks and `{other}` {firings(b, items)}"
    rule = rules.MC402 if pop(a) != pop(b) else rules.MC403
    text = "new items per chunk differ" if rule is rules.MC402 else "their chunks fill at different items"
    message = f"`{first}` and `{other}` are taken together, but {text}: {_named(a)} and {_named(b)}"
    _report(rule, op, ends, message, note, report)


def _named(policy: Policy) -> str:
    match policy:
        case Fixed(size):
            return f"fixed({size})"
        case SlidingWindow(size, stride):
            return f"sliding_window({size}, {stride})"
        case LeftContext(chunk, left):
            return f"left_context({chunk}, {left})"
        case Phrase(most):
            return f"phrase(max = {most})"


def _report(
    rule: Rule, op: Next | ForChunks, ends: tuple[Stream, Stream], message: str, note: str, report: Collector
) -> None:
    report.report(
        rule,
        message,
        op.span,
        "both must be ready for this to run",
        secondary=tuple(Label(s.span, f"`{s.name}` is declared here") for s in ends),
        notes=(note,),
        subject=ends[0].name,
    )
