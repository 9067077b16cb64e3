"""Walking and rewriting blocks: identity is kept where nothing changes."""

from __future__ import annotations

from dataclasses import replace

from mstarc.ir.core import Block, Emit, Op, Send
from mstarc.ir.text import parse_program, print_program
from mstarc.ir.visit import every_op, results_of, rewrite, vars_of
from tests.ir.test_verify import GOOD


def names(block: Block) -> list[str]:
    return [type(op).__name__ for op in every_op(block)]


def test_every_operation_is_visited_with_inner_ones_after_their_holder() -> None:
    program = parse_program(GOOD)
    assert names(program.walks[0].body) == [
        "Invoke", "Sample", "Loop", "Stop", "Collect", "Send", "Emit", "Invoke", "Invoke", "Invoke", "Fork", "When", "Compute", "Drop",
    ]  # fmt: skip
    assert names(program.requests[0].body) == [
        "Extern",
        "Require",
        "ForParts",
        "Require",
        "Together",
        "CallWalk",
        "CallWalk",
    ]


def test_rewriting_nothing_gives_the_same_object() -> None:
    program = parse_program(GOOD)
    for unit in (*program.walks, *program.requests):
        assert rewrite(unit.body, lambda op: (op,)) is unit.body


def test_operations_can_be_dropped_and_doubled_at_any_depth() -> None:
    def change(op: Op) -> tuple[Op, ...]:
        if isinstance(op, Send):
            return ()
        return (op, op) if isinstance(op, Emit) else (op,)

    program = parse_program(GOOD)
    first, second = (rewrite(walk.body, change) for walk in program.walks)
    assert "Send" not in names(first)
    assert names(first).count("Emit") == 2
    assert names(second) == ["ForChunks", "When", "Emit", "Emit"]
    changed = replace(
        program, walks=tuple(replace(w, body=b) for w, b in zip(program.walks, (first, second), strict=True))
    )
    assert parse_program(print_program(changed)) == changed


def test_results_and_uses() -> None:
    walk = parse_program(GOOD).walks[0]
    loop = walk.body.ops[2]
    assert [value.name for value in results_of(loop)] == ["end", "all"]
    stop = next(op for op in every_op(walk.body) if type(op).__name__ == "Stop")
    assert list(vars_of(stop.cond)) == [3]  # type: ignore[union-attr]
