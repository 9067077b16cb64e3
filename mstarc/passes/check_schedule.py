"""Progress of the arms of `together`: MC102, MC103 (deadlock), MC407 (`next` past the end), MC403 (unequal chunk counts).

Takes a program; runs each request's arms through many small courses (`scenario`, `schedule`) and reports what stops one. Each
finding holds for the course that it names; that no course within the budget fails is evidence for all counts, not a proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from random import Random

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir.core import Program, Request, Together
from mstarc.ir.fold import FoldError
from mstarc.ir.visit import every_op
from mstarc.passes.check_streams import stream_policy
from mstarc.passes.effects import Names, StreamEnds
from mstarc.passes.ranges import Ranges
from mstarc.passes.scenario import Choices, Frame, Opaque, OutOfSteps, Stuck, Surplus, Wait
from mstarc.passes.schedule import Schedule
from mstarc_runtime.abi.chunks import Policy, least_capacity, peek, pop

STEPS = 10_000  # of all courses of a request together
COURSES = 150
REACH = 600


def check_schedule(program: Program, report: Collector, sinks_early: bool = False) -> None:
    """Every request that has a `together` over streams. `sinks_early`: see `Schedule`."""
    names, ranges = Names(program), Ranges(program)
    policies: dict[str, Policy] = {}
    for stream in program.streams:
        policy = stream_policy(stream, ranges)
        if policy is None:
            return  # its numbers are known at link, or wrong and reported
        policies[stream.name] = policy
    for request in program.requests:
        if policies and any(isinstance(op, Together) for op in every_op(request.body)):
            _check_request(program, request, names, policies, report, sinks_early)


def _reach(program: Program, policies: dict[str, Policy]) -> int:
    """A count that fills every stream and fires each policy some times more."""
    ranges = Ranges(program)
    total = 2
    for stream in program.streams:
        policy = policies[stream.name]
        low = ranges.of(stream.capacity).low
        held = int(low) if abs(low) != float("inf") else least_capacity(policy)
        total += held + peek(policy, 1) + 2 * pop(policy)
    return min(total, REACH)


def _check_request(
    program: Program,
    request: Request,
    names: Names,
    policies: dict[str, Policy],
    report: Collector,
    sinks_early: bool,
) -> None:
    budget = [STEPS]
    ends = StreamEnds(names)
    for choices in _courses(_reach(program, policies)):
        frame = Frame(program, request, choices, request.name)
        frame.values = {v.id: Opaque(f"{request.name}.{v.name}") for v in request.inputs}
        try:
            found = Schedule(names, policies, ends, frame, budget, sinks_early).run()
        except OutOfSteps:
            return
        except FoldError:
            continue  # this course asks for a number that only a checkpoint gives
        if found is not None:
            _report(found, choices, request, names, report)
            return


def _courses(reach: int) -> Iterator[Choices]:
    """Courses from the tree of all picks; of a tree that looks too large, in turn with random ones. The same ones every time. Ends
    when the tree is exhausted.
    """
    tree, rng = Choices(reach), Random(7)
    for _ in range(COURSES):
        yield tree
        large = prod(tree.widths.values()) > COURSES
        if not tree.advance():
            return
        if large:
            yield Choices(reach, rng)


def _report(found: Stuck | Surplus, choices: Choices, request: Request, names: Names, report: Collector) -> None:
    told = choices.told()
    notes = (f"this happens in request `{request.name}`" + (f" with {told}" if told else ""),)
    if isinstance(found, Stuck):
        _report_stuck(found, notes, report)
    elif found.kind == "next":
        stream = names.streams[found.stream]
        report.report(
            rules.MC407,
            f"`next({found.stream})` is called after the stream has ended and given its {_chunks(found.taken)}",
            found.span,
            "there is no chunk to take",
            secondary=(Label(stream.span, f"`{found.stream}` does not say `after_end empty`"),),
            notes=notes,
            help="add `after_end empty` if absent is meant, or make both sides run equally often",
            subject=found.stream,
        )
    else:
        more = ", ".join(f"`{s}`" for s in found.others)
        report.report(
            rules.MC403,
            f"`{found.stream}` has ended after {_chunks(found.taken)}, but {more} taken with it has more",
            found.span,
            notes=notes,
            help="send equally many items on both",
            subject=found.stream,
        )


def _report_stuck(found: Stuck, notes: tuple[str, ...], report: Collector) -> None:
    """The waits as a path from arm to arm, with what each stream holds."""
    full = [w for w in found.waits if w.what == "room"]
    first = (full or list(found.waits))[0]
    rule = rules.MC103 if full else rules.MC102
    path = "\n".join(_told(w) for w in found.waits)
    if full:
        message = (
            f"the arms stop for ever: `{first.stream}` is full at capacity {first.capacity} and nobody takes from it"
        )
        help_text = f"raise the capacity of `{first.stream}`, or send and take in the same order on both sides"
    else:
        message = (
            f"the arms stop for ever: each waits for an item that the other sends later (`{first.stream}` is empty)"
        )
        help_text = "send before you take in one of the arms"
    second = tuple(Label(w.span, f"arm `{w.arm}` waits here") for w in found.waits if w.span != first.span)
    report.report(
        rule,
        message,
        first.span,
        f"arm `{first.arm}` waits here",
        secondary=second,
        notes=(path, *notes),
        help=help_text,
        subject=first.stream,
    )


def _told(wait: Wait) -> str:
    if wait.what == "room":
        return f"arm `{wait.arm}` waits for room in `{wait.stream}` ({wait.held} of {wait.capacity} held)"
    return f"arm `{wait.arm}` waits for an item of `{wait.stream}` ({wait.held} held)"


def _chunks(number: int) -> str:
    return f"{number} chunk{'s' * (number != 1)}"
