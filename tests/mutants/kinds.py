"""Kinds of structural mistakes: each takes a well-formed program and gives one that a careless author or a broken pass might have made.

A mutation changes one place. Value ids are dense again afterwards, so that a mutant is refused for what it means and not for how its
values are numbered.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from mstarc.ir.core import (
    Block,
    CallWalk,
    Carry,
    Collect,
    Compute,
    Drop,
    Emit,
    ForChunks,
    Fork,
    Invoke,
    Loop,
    Next,
    Op,
    Program,
    Request,
    Sample,
    Send,
    Stop,
    Together,
    Value,
    Walk,
    When,
)
from mstarc.ir.renumber import renumbered
from mstarc.ir.types import Binary, Lit, Ref, Tensor, Var
from mstarc.ir.visit import every_op, results_of, rewrite

Mutation: TypeAlias = Callable[[random.Random, Program], Program | None]
KINDS: dict[str, Mutation] = {}


def kind(mutation: Mutation) -> Mutation:
    """Enter a mutation under its name. It gives None for a program that has no place for it."""
    KINDS[mutation.__name__] = mutation
    return mutation


def mutant(name: str, draw: random.Random, program: Program) -> Program | None:
    """The program with one mistake of that kind; None if it has no place for it."""
    found = KINDS[name](draw, program)
    return None if found is None or found == program else renumbered(found)


# ------------------------------------------------------------------------------------------------------------ changing a place


def at_one(draw: random.Random, program: Program, wanted: Any, change: Callable[[Any], Any]) -> Program | None:
    """One operation of a walk, of the wanted class, replaced by what `change` makes of it (an operation or a tuple of them)."""
    places = [(k, op) for k, walk in enumerate(program.walks) for op in every_op(walk.body) if isinstance(op, wanted)]
    if not places:
        return None
    index, chosen = draw.choice(places)

    def exchange(op: Op) -> tuple[Op, ...]:
        if not same_place(op, chosen):
            return (op,)
        changed = change(op)
        return changed if isinstance(changed, tuple) else (changed,)

    return with_walk(program, index, lambda walk: replace(walk, body=rewrite(walk.body, exchange)))


def same_place(op: Op, chosen: Op) -> bool:
    """Operations define values of their own or are the same object: blocks inside them may have been rebuilt."""
    mine, other = results_of(op), results_of(chosen)
    return op is chosen or (type(op) is type(chosen) and bool(mine) and mine == other)


def with_walk(program: Program, index: int, change: Callable[[Walk], Walk]) -> Program:
    """The program with one walk changed."""
    walks = list(program.walks)
    walks[index] = change(walks[index])
    return replace(program, walks=tuple(walks))


def with_request(program: Program, change: Callable[[Op], tuple[Op, ...]]) -> Program:
    """The program with the operations of its request changed."""
    request: Request = program.requests[0]
    return replace(program, requests=(replace(request, body=rewrite(request.body, change)),))


def at_stream(draw: random.Random, program: Program, **changes: Any) -> Program | None:
    """One stream with fields changed."""
    if not program.streams:
        return None
    index = draw.randrange(len(program.streams))
    streams = list(program.streams)
    streams[index] = replace(streams[index], **changes)
    return replace(program, streams=tuple(streams))


def values_of(walk: Walk) -> list[Value]:
    """Every value of a walk."""
    found = list(walk.params)
    for op in every_op(walk.body):
        found += results_of(op)
        found += [carry.inner for carry in op.carries] if isinstance(op, Loop) else []
    return found


# --------------------------------------------------------------------------------------------------------------- operations


@kind
def lose_an_operation(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, (Compute, Invoke, Sample, Emit, Send, Fork, Drop, Collect, Stop, Next), lambda op: ())


@kind
def double_an_operation(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, (Emit, Send, Fork, Drop, Collect, Stop), lambda op: (op, op))


@kind
def define_a_value_twice(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, (Compute, Invoke, Sample), lambda op: (op, op))


@kind
def swap_neighbours(draw: random.Random, program: Program) -> Program | None:
    index = draw.randrange(len(program.walks))

    def swapped(walk: Walk) -> Walk:
        ops = list(walk.body.ops)
        if len(ops) < 2:
            return walk
        k = draw.randrange(len(ops) - 1)
        ops[k], ops[k + 1] = ops[k + 1], ops[k]
        return replace(walk, body=Block(tuple(ops)))

    return with_walk(program, index, swapped)


@kind
def read_another_value(draw: random.Random, program: Program) -> Program | None:
    """Any value of the walk, whether it is visible there or not."""
    index = draw.randrange(len(program.walks))
    wanted = draw.choice(values_of(program.walks[index]))

    def change(op: Any) -> Any:
        if isinstance(op, Compute):
            return replace(op, expr=Var(wanted.id))
        return replace(op, value=Var(wanted.id))

    return at_one(draw, program, (Compute, Emit, Send, Collect), change)


@kind
def leave_out_an_argument(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Invoke, lambda op: replace(op, args=op.args[:-1]))


@kind
def leave_an_argument_absent(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Invoke, lambda op: replace(op, args=(None, *op.args[1:])))


@kind
def one_result_too_many(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Invoke, lambda op: replace(op, results=(*op.results, None)))


@kind
def call_an_unknown_op(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Invoke, lambda op: replace(op, op="nothing"))


@kind
def call_another_op(draw: random.Random, program: Program) -> Program | None:
    names = [(node.name, op.name) for node in program.nodes for op in node.ops]
    node, op = draw.choice(names)
    return at_one(draw, program, Invoke, lambda call: replace(call, node=node, op=op))


@kind
def use_an_unknown_sampler(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Sample, lambda op: replace(op, sampler="nothing"))


@kind
def share_a_drawing_site(draw: random.Random, program: Program) -> Program | None:
    """Two draws with one key: whatever it gives, it must give the same on every path to it."""
    sites = [op.site for walk in program.walks for op in every_op(walk.body) if isinstance(op, Sample)]
    return at_one(draw, program, Sample, lambda op: replace(op, site=draw.choice(sites)))


@kind
def sample_from_an_id(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Sample, lambda op: replace(op, logits=Lit(7)))


# ----------------------------------------------------------------------------------------------------------------- contexts


@kind
def write_a_context_of_another_arm(draw: random.Random, program: Program) -> Program | None:
    contexts = [context.name for context in program.contexts]
    return at_one(
        draw, program, Invoke, lambda op: replace(op, writes=(draw.choice(contexts),)) if op.writes else (op,)
    )


@kind
def read_a_context_of_another_arm(draw: random.Random, program: Program) -> Program | None:
    contexts = [context.name for context in program.contexts]
    return at_one(draw, program, Invoke, lambda op: replace(op, reads=(draw.choice(contexts),)) if op.reads else (op,))


@kind
def write_through_a_frozen_op(draw: random.Random, program: Program) -> Program | None:
    return at_one(
        draw, program, Invoke, lambda op: replace(op, writes=op.reads, reads=()) if op.reads else replace(op, writes=())
    )


@kind
def fork_onto_itself(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Fork, lambda op: replace(op, target=op.source))


@kind
def fork_the_other_way(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Fork, lambda op: Fork(op.source, op.target))


@kind
def drop_what_is_read(draw: random.Random, program: Program) -> Program | None:
    contexts = [context.name for context in program.contexts]
    return at_one(draw, program, Invoke, lambda op: (Drop((draw.choice(contexts),)), op))


# -------------------------------------------------------------------------------------------------------------------- loops


@kind
def bound_of_nought(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Loop, lambda op: replace(op, bound=Lit(0)))


@kind
def bound_below_nought(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Loop, lambda op: replace(op, bound=Binary("-", Ref("param", "p"), Lit(7))))


@kind
def bound_from_the_device(draw: random.Random, program: Program) -> Program | None:
    index = draw.randrange(len(program.walks))
    start = program.walks[index].params[0]
    return at_one(draw, program, Loop, lambda op: replace(op, bound=Var(start.id)))


@kind
def static_for_dynamic(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Loop, lambda op: replace(op, kind="times" if op.kind == "max" else "max"))


def _carried(draw: random.Random, program: Program, change: Callable[[Carry], Carry]) -> Program | None:
    def with_carry(loop: Loop) -> Loop:
        if not loop.carries:
            return loop
        k = draw.randrange(len(loop.carries))
        return replace(loop, carries=(*loop.carries[:k], change(loop.carries[k]), *loop.carries[k + 1 :]))

    return at_one(draw, program, Loop, with_carry)


@kind
def carry_the_old_value(draw: random.Random, program: Program) -> Program | None:
    return _carried(draw, program, lambda carry: replace(carry, next=Var(carry.inner.id)))


@kind
def begin_with_the_inner_value(draw: random.Random, program: Program) -> Program | None:
    return _carried(draw, program, lambda carry: replace(carry, init=Var(carry.inner.id)))


@kind
def carry_another_type(draw: random.Random, program: Program) -> Program | None:
    return _carried(draw, program, lambda carry: replace(carry, inner=replace(carry.inner, type=Tensor("f32"))))


@kind
def forget_a_carry(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Loop, lambda op: replace(op, carries=op.carries[1:]))


@kind
def collect_under_another_name(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Collect, lambda op: replace(op, name="elsewhere"))


@kind
def forget_to_gather(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Loop, lambda op: replace(op, gathers=()))


@kind
def stop_without_what_is_carried(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Stop, lambda op: replace(op, carried=op.carried[1:]))


@kind
def stop_always(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Stop, lambda op: replace(op, cond=Lit(True)))


@kind
def stop_outside_the_loop(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Loop, lambda op: (op, Stop(Lit(True), ())))


@kind
def take_the_body_out(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Loop, lambda op: op.body.ops)


@kind
def guard_on_the_device(draw: random.Random, program: Program) -> Program | None:
    start = program.walks[0].params[0]
    return at_one(draw, program, When, lambda op: replace(op, cond=Binary("==", Var(start.id), Lit(3))))


@kind
def take_the_guard_away(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, When, lambda op: op.body.ops)


# ------------------------------------------------------------------------------------------------------------------ streams


@kind
def send_to_an_unknown_stream(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Send, lambda op: replace(op, stream="nothing"))


@kind
def send_to_another_stream(draw: random.Random, program: Program) -> Program | None:
    names = [stream.name for stream in program.streams]
    return at_one(draw, program, Send, lambda op: replace(op, stream=draw.choice(names)))


@kind
def send_in_a_loop(draw: random.Random, program: Program) -> Program | None:
    """More items than before: a consumer that takes a fixed number then leaves some."""
    return at_one(draw, program, Send, lambda op: Loop("again", "times", Lit(9), (), (), Block((op,))))


@kind
def take_from_another_stream(draw: random.Random, program: Program) -> Program | None:
    names = [stream.name for stream in program.streams]
    return at_one(draw, program, (Next, ForChunks), lambda op: replace(op, streams=(draw.choice(names),)))


@kind
def take_once_more(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Next, lambda op: (op, replace(op, results=(None,))))


@kind
def no_capacity(draw: random.Random, program: Program) -> Program | None:
    return at_stream(draw, program, capacity=Lit(draw.choice((0, 1, 2))))


@kind
def stride_past_the_window(draw: random.Random, program: Program) -> Program | None:
    return at_stream(draw, program, policy="sliding_window", args=(("size", Lit(2)), ("stride", Lit(3))))


@kind
def stride_of_nought(draw: random.Random, program: Program) -> Program | None:
    return at_stream(draw, program, policy="sliding_window", args=(("size", Lit(2)), ("stride", Lit(0))))


@kind
def more_context_than_chunk(draw: random.Random, program: Program) -> Program | None:
    return at_stream(draw, program, policy="left_context", args=(("chunk", Lit(1)), ("left", Lit(3))))


@kind
def another_end_rule(draw: random.Random, program: Program) -> Program | None:
    return at_stream(draw, program, at_end=draw.choice(("", "drop", "partial", "pad:zero", "pad:repeat")))


@kind
def absent_or_not_after_the_end(draw: random.Random, program: Program) -> Program | None:
    flip = draw.random() < 0.5
    return at_stream(draw, program, after_end_empty=flip)


@kind
def let_nothing_through(draw: random.Random, program: Program) -> Program | None:
    return at_stream(draw, program, where=Binary("<", Ref("dim", "item"), Lit(-1)))


# ----------------------------------------------------------------------------------------------------------------- requests


def _together(draw: random.Random, program: Program, change: Callable[[Together], Together]) -> Program:
    del draw
    return with_request(program, lambda op: (change(op),) if isinstance(op, Together) else (op,))


@kind
def lose_an_arm(draw: random.Random, program: Program) -> Program | None:
    def change(op: Together) -> Together:
        k = draw.randrange(len(op.arms))
        return replace(op, arms=op.arms[:k] + op.arms[k + 1 :])

    return _together(draw, program, change)


@kind
def run_an_arm_twice(draw: random.Random, program: Program) -> Program | None:
    def change(op: Together) -> Together:
        return replace(op, arms=(*op.arms, replace(draw.choice(op.arms), label="again")))

    return _together(draw, program, change)


@kind
def arms_one_after_the_other(draw: random.Random, program: Program) -> Program | None:
    del draw
    return with_request(
        program, lambda op: tuple(o for arm in op.arms for o in arm.body.ops) if isinstance(op, Together) else (op,)
    )


@kind
def arms_in_another_order(draw: random.Random, program: Program) -> Program | None:
    return _together(draw, program, lambda op: replace(op, arms=tuple(reversed(op.arms))))


@kind
def call_an_unknown_walk(draw: random.Random, program: Program) -> Program | None:
    del draw
    return with_request(program, lambda op: (replace(op, walk="nothing"),) if isinstance(op, CallWalk) else (op,))


@kind
def call_another_walk(draw: random.Random, program: Program) -> Program | None:
    name = draw.choice(program.walks).name
    return with_request(program, lambda op: (replace(op, walk=name),) if isinstance(op, CallWalk) else (op,))


@kind
def call_without_arguments(draw: random.Random, program: Program) -> Program | None:
    del draw
    return with_request(program, lambda op: (replace(op, args=()),) if isinstance(op, CallWalk) else (op,))


@kind
def emit_what_is_not_declared(draw: random.Random, program: Program) -> Program | None:
    return at_one(draw, program, Emit, lambda op: replace(op, modality="nothing"))


@kind
def emit_from_another_arm(draw: random.Random, program: Program) -> Program | None:
    names: list[str] = [name for name, _ in program.requests[0].outputs]
    return at_one(draw, program, Emit, lambda op: replace(op, modality=draw.choice(names)))
