"""Contexts, positions, samplers and drawing sites (language, sentences 2, 9, 10 and 11)."""

from __future__ import annotations

from typing import Any

import pytest

from mstarc.interp import ExecutionError, HashMachine, interpret
from tests.interp.programs import program, record, run

DECLS = """
param off: bool = false
extern ids(n: int) -> (t: i64[dim.T])
cache kv(layers = 2, heads = 2, kv_heads = 1, head_dim = 4)
cache other(layers = 1, heads = 1, kv_heads = 1, head_dim = 4)
context main on kv max 20
context copy on kv
context extra on kv when not param.off
context source on other
sampler greedy(temperature = 0)
sampler hot(temperature = 0.9)
sampler strict(temperature = 0, suppress = [0..97 except 4, 99])
sampler penal(temperature = 0, repetition_penalty = 1.3) over main
node llm: transformer on kv {
  op read(ids: i64[dim.T]) -> (logits: f32[100]) { attend causal positions seq }
  op step(token: i64[]) -> (logits: f32[100]) { attend causal positions seq }
  op peek(x: i64[]) -> (y: i64[]) { attend full positions same takes 3 frozen }
  op block(rows: f32[dim.N, 4]) -> () { attend full positions same advance 1 takes dim.N + 2 }
  op still(rows: f32[dim.N, 4]) -> () { attend full positions same takes dim.N }
  op placed(rows: f32[dim.N, 4], place: host i64[3, dim.N], span: host i64[]) -> () {
    positions at at dim.place advance dim.span takes dim.N
  }
  op listen(token: i64[]) -> (logits: f32[100]) { attend causal positions seq cross }
}
node enc: transformer on other {
  op write(x: i64[]) -> () { attend full positions seq takes 4 }
}
node gen: stateless {
  op make(n: i64[]) -> (rows: f32[5, 4])
  op roll(n: i64[]) -> (y: i64[]) { random }
}
"""


def walk(body: str, tail: str = "") -> str:
    """A request that runs one walk with these operations; %0 is the id 5."""
    return f"{DECLS}walk w(%0 five: i64[]) {{\n{body}\n}}\n{tail}request r() -> (tensor) {{\n  call w(5)\n}}\n"


READ = "  %1 t: host i64[dim.T] = extern ids(3)\n  %2 l: f32[100] = invoke llm.read(%1) writes main\n"
IDS = {"ids": lambda n: tuple(range(1, n + 1))}


def peeks(*ops: str) -> str:
    """Operations, with `peek CONTEXT` standing for a frozen read that is emitted; ids count on from %3."""
    lines, ident = [], 3
    for op in ops:
        word, _, context = op.partition(" ")
        if word == "peek":
            lines += [f"  %{ident} p{ident}: i64[] = invoke llm.peek(%0) reads {context}", f"  emit %{ident} as tensor"]
            ident += 1
        elif word == "step":
            lines.append(f"  _ = invoke llm.step(%0) writes {context}")
        else:
            lines.append("  " + op)
    return READ + "\n".join(lines)


def seen(*ops: str, **options: Any) -> list[Any]:
    return run(walk(peeks(*ops)), externs=IDS, **options).emitted("tensor")


def test_contexts_start_empty_and_may_be_read() -> None:
    a, b, c = seen("peek copy", "peek main", "peek extra")
    assert a == c != b


def test_a_frozen_op_changes_nothing() -> None:
    a, b = seen("peek main", "peek main")
    assert a == b
    assert run(walk(peeks("peek main", "peek copy")), externs=IDS).contexts["main"] == (3, 3)


def test_fork_copies_and_later_writes_are_private() -> None:
    a, b, c, d, e = seen(
        "peek main", "fork copy from main", "peek copy", "step main", "peek copy", "peek main", "step copy", "peek copy"
    )
    assert a == b == c  # copy is main as it was, also after main went on
    assert d != a
    assert e == d  # the same history gives the same context
    assert run(walk(READ + "  fork copy from main\n  _ = invoke llm.step(%0) writes main"), externs=IDS).contexts == {
        "main": (4, 4),
        "copy": (3, 3),
        "extra": (0, 0),
        "source": (0, 0),
    }


def test_fork_replaces_what_the_target_held() -> None:
    a, b, c = seen("step copy", "peek copy", "fork copy from main", "peek copy", "peek main")
    assert a != b == c


def test_drop_makes_empty() -> None:
    a, b, c = seen("peek copy", "step copy", "peek copy", "drop copy", "peek copy")
    assert a == c != b
    assert run(walk(READ + "  drop main"), externs=IDS).contexts["main"] == (0, 0)


def test_one_call_on_two_contexts_is_two_runs_with_the_value_of_the_first() -> None:
    machine, out = record(
        walk(
            "  _ = invoke llm.step(%0) writes copy\n  %1 l: f32[100] = invoke llm.step(%0) writes copy, main\n  emit %1 as tensor"
        )
    )
    assert [call.length for call in machine.calls] == [0, 1, 0]
    assert out.contexts["copy"] == (2, 2)
    assert out.contexts["main"] == (1, 1)
    alone = run(
        walk(
            "  _ = invoke llm.step(%0) writes copy\n  %1 l: f32[100] = invoke llm.step(%0) writes copy\n  emit %1 as tensor"
        )
    )
    assert out.emitted("tensor")[0].same(alone.emitted("tensor")[0])


SWITCHED = (
    READ
    + """  fork extra from main
  _ = invoke llm.step(%0) writes main, extra
  %3 p: i64[]? = invoke llm.peek(%0) reads extra
  emit present(%3) as tensor
  emit %0 as text"""
)


@pytest.mark.parametrize("off", [False, True])
def test_a_context_that_is_switched_off_ignores_writes_and_its_reads_are_absent(off: bool) -> None:
    out = run(walk(SWITCHED), externs=IDS, params={"off": off})
    assert out.emitted("tensor") == [not off]
    assert out.contexts["extra"] == ((0, 0) if off else (4, 4))
    assert out.contexts["main"] == (4, 4)


def test_length_and_position_advance_separately() -> None:
    body = (
        READ
        + """  %3 rows: f32[5, 4] = invoke gen.make(%0)
  invoke llm.block(%3) writes main
  _ = invoke llm.step(%0) writes main
  _ = invoke llm.peek(%0) reads main"""
    )
    parsed = program(walk(body))
    machine, out = record(walk(body))
    read, _, block, step, peek = machine.calls
    n = read.takes
    assert parsed.contexts[0].name == "main"
    assert read.positions == list(range(n))
    assert (block.length, block.takes, block.positions) == (n, 7, [n] * 7)
    assert (step.length, step.positions) == (n + 7, [n + 1])
    assert peek.positions == [n + 2] * 3
    assert out.contexts["main"] == (n + 8, n + 2)


def test_same_without_advance_leaves_the_counter() -> None:
    body = "  %1 rows: f32[5, 4] = invoke gen.make(%0)\n  invoke llm.still(%1) writes main\n  _ = invoke llm.step(%0) writes main"
    machine, out = record(walk(body))
    assert [call.positions for call in machine.calls[1:]] == [[0] * 5, [0]]
    assert out.contexts["main"] == (6, 1)


def test_positions_at_count_from_the_counter_and_advance_as_told() -> None:
    body = (
        READ
        + """  %3 rows: f32[5, 4] = invoke gen.make(%0)
  invoke llm.placed(%3, [[0, 0, 1, 1, 2], [0, 1, 0, 1, 0], [9, 9, 9, 9, 9]], 3) writes main"""
    )
    machine, out = record(walk(body))
    n = machine.calls[0].takes
    assert machine.calls[-1].positions == [[n, n, n + 1, n + 1, n + 2], [n, n + 1, n, n + 1, n], [n + 9] * 5]
    assert out.contexts["main"] == (n + 5, n + 3)


def test_a_call_that_takes_nothing_is_skipped() -> None:
    out = run(walk("  %1 t: host i64[dim.T] = extern ids(0)\n  _ = invoke llm.read(%1) writes main"), externs=IDS)
    assert out.contexts["main"] == (0, 0)


def test_a_context_beyond_its_max_is_an_error_that_names_it() -> None:
    with pytest.raises(ExecutionError, match="`main` holds 21 entries, more than its max 20"):
        run(walk("  loop l times 25 do {\n    _ = invoke llm.step(%0) writes main\n  }"))


def test_cross_attention_sees_its_source() -> None:
    body = "  invoke enc.write(%0) writes source\n  %1 l: f32[100] = invoke llm.listen(%0) writes main reads source\n  emit %1 as tensor"
    with_source = run(walk(body))
    without = run(walk(body.replace("  invoke enc.write(%0) writes source\n", "")))
    assert not with_source.emitted("tensor")[0].same(without.emitted("tensor")[0])
    assert with_source.contexts["source"] == (4, 4)
    assert with_source.contexts["main"] == (1, 1)


# ----------------------------------------------------------------------------------------------------------------- sampling

DRAW = (
    READ
    + """  %3 a: i64[] = sample {sampler}(%2) site "a"
  %4 b: i64[] = sample {sampler}(%2) site "{second}"
  emit %3 as tensor
  emit %4 as tensor"""
)


def draw(sampler: str, second: str = "b", seed: int = 0) -> tuple[list[Any], tuple[int, ...]]:
    out = run(walk(DRAW.format(sampler=sampler, second=second)), externs=IDS, seed=seed)
    return out.emitted("tensor"), out.draws[sampler]


def test_every_draw_joins_the_history_and_has_its_own_key() -> None:
    (a, b), history = draw("hot")
    assert history == (a, b)
    assert a != b  # another site
    (c, d), _ = draw("hot", second="a")
    assert c == a
    assert d not in (a, b)  # the same site, one later
    assert draw("hot", seed=1)[0] != [a, b]
    assert draw("hot")[0] == [a, b]


def test_greedy_does_not_depend_on_the_seed() -> None:
    assert draw("greedy", seed=1) == draw("greedy", seed=2)


def test_suppressed_ids_are_ranges_without_the_excepted() -> None:
    assert set(draw("strict")[0]) <= {4, 98}


def test_the_penalty_counts_own_draws_and_the_ids_of_the_context() -> None:
    (a, b), _ = draw("penal")
    assert a != b  # same logits, one more own draw

    def first(extra: str) -> Any:
        body = READ + extra + '  %3 a: i64[] = sample penal(%2) site "a"\n  emit %3 as tensor'
        return run(walk(body), externs=IDS).emitted("tensor")[0]

    assert first("") != first("  _ = invoke llm.step(%0) writes main\n")
    assert first("") == first("  _ = invoke llm.step(%0) writes copy\n")


def test_a_fork_carries_the_ids_too() -> None:
    states: list[list[int]] = []

    class Spy(HashMachine):
        def sample(self, logits: Any, sampler: Any, key: Any) -> int:
            states.append(list(sampler.over))
            return super().sample(logits, sampler, key)

    body = """  _ = invoke llm.step(%0) writes copy
  fork main from copy
  _ = invoke llm.step(8) writes main
  %1 l: f32[100] = invoke llm.step(9) writes copy
  %2 a: i64[] = sample penal(%1) site "a"
  drop main
  %3 b: i64[] = sample penal(%1) site "b"
"""
    parsed = program(walk(body))
    interpret(parsed, Spy(parsed, externs=IDS), {})
    assert states == [[5, 8], []]


def test_noise_has_the_shape_of_its_type_and_a_key_of_its_own() -> None:
    body = """  %1 t: host i64[dim.T] = extern ids(3)
  loop l times 2 do {
    %2 x: f32[dim.T, 2] = noise site "x"
    emit %2 as tensor
  }"""
    a, b = run(walk(body), externs=IDS).emitted("tensor")
    c, d = run(walk(body), externs=IDS, seed=1).emitted("tensor")
    assert a.shape == (3, 2)
    assert len({x.key for x in (a, b, c, d)}) == 4


def test_random_ops_get_a_key_per_call() -> None:
    a, b = run(
        walk("  loop l times 2 do {\n    %1 y: i64[] = invoke gen.roll(%0)\n    emit %1 as tensor\n  }")
    ).emitted("tensor")
    assert a != b
