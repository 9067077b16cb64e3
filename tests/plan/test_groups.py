"""MC604: groups of ranks that overlap, or do not divide what they share."""

from __future__ import annotations

import itertools

import pytest

from mstarc.ir.text import parse_program
from mstarc.plan.model import Plan
from tests.codegen.harness import plan_of
from tests.plan.test_link import attempt, line_of, refused

RANKS = "".join(f"[ranks.{k}]\n" for k in range(4))


def plan(heads: int = 8, kv_heads: int = 4) -> Plan:
    return plan_of(
        parse_program(
            f"""mstarc.ir 1
model t
cache kv(layers = 1, heads = {heads}, kv_heads = {kv_heads}, head_dim = 2)
context c on kv max 8
context d on kv max 8
node a: transformer on kv {{ op f(x: i64[]) -> (y: f32[2]) {{ attend full positions seq takes 1 }} }}
node b: transformer on kv {{
  op f(x: i64[]) -> (y: f32[2]) {{ attend full positions seq takes 1 }}
  op g(x: i64[]) -> (y: f32[2]) {{ attend full positions seq takes 1 }}
}}
walk w(%0 x: host i64[]) {{ %1 y: f32[2] = invoke a.f(%0) writes c emit %1 as m }}
walk u(%0 x: host i64[]) {{ %1 y: f32[2] = invoke b.f(%0) writes d emit %1 as m }}
walk v(%0 x: host i64[]) {{ %1 z: f32[2] = invoke b.g(%0) writes d emit %1 as m }}
"""
        )
    )


@pytest.mark.parametrize("first", [[0], [0, 1], [1, 0], [2, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("second", [[1], [0, 1], [1, 2], [2, 3], [0, 1, 2, 3]])
def test_groups_are_equal_or_disjoint(first: list[int], second: list[int]) -> None:
    """A rank alone takes part in no sum, so it is free to be in a group as well."""
    toml = RANKS + f"[place]\na = {first}\nb = {second}\n"
    _, findings = attempt(plan(), toml)
    overlap = len(first) > 1 and len(second) > 1 and set(first) != set(second) and bool(set(first) & set(second))
    assert ("MC604" in {d.rule.code for d in findings}) == overlap
    if overlap:
        [found] = findings
        assert line_of(found, toml) == f"b = {second}"
        [label] = found.secondary
        assert toml.encode()[label.span.start : label.span.end].decode() == f"a = {first}"


def test_a_group_of_one_op_and_of_one_walk() -> None:
    for line, table in (('"b.g" = [1, 2]', "place"), ("b = [1, 2]", "walks.v"), ("z = [1, 2]", "walks.v")):
        toml = RANKS + "[place]\na = [0, 1]\nb = 0\n" + ("" if table == "place" else f"[{table}]\n") + line + "\n"
        found = refused(plan(), toml)
        assert found.rule.code == "MC604" and "`b`" in found.message
        assert line_of(found, toml) == line


def test_three_groups_give_each_pair_that_overlaps() -> None:
    toml = RANKS + '[place]\na = [0, 1]\nb = [1, 2]\n"b.g" = [2, 3]\n'
    found, findings = attempt(plan(), toml)
    assert found is None
    assert [(d.rule.code, line_of(d, toml)) for d in findings] == [("MC604", "b = [1, 2]"), ("MC604", '"b.g" = [2, 3]')]


@pytest.mark.parametrize(("heads", "kv_heads"), list(itertools.product((2, 6, 8), (1, 2, 3, 4))))
def test_the_ranks_divide_the_heads(heads: int, kv_heads: int) -> None:
    if heads % kv_heads:
        return
    for size in (2, 3, 4):
        toml = RANKS + f"[place]\na = {list(range(size))}\nb = 0\n"
        _, findings = attempt(plan(heads, kv_heads), toml)
        codes = {d.rule.code for d in findings}
        assert ("MC604" in codes) == bool(heads % size or kv_heads % size)
        assert ("MC607" in codes) != ("MC604" in codes), "one mistake, one error"


def test_what_the_heads_divide_into_is_said() -> None:
    found = refused(plan(8, 4), RANKS + "[place]\na = [0, 1, 2]\nb = 0\n")
    assert found.message == "3 ranks of `a` cannot share the 8 heads of cache `kv` equally"
    assert found.help == "8 divide into 2, 4, 8"
    alone = refused(plan(8, 1), RANKS + "[place]\na = [0, 1]\nb = 0\n")
    assert alone.help == "give the node one rank" and "1 heads of keys and values" in alone.message


def test_any_number_of_heads_is_answered_at_once() -> None:
    """The help lists sizes, and a checkpoint's own number of heads may be anything: trying all of them would not end."""
    toml = RANKS + "[place]\na = [0, 1, 2]\nb = 3\n"
    found = refused(plan(heads=1 << 60, kv_heads=1 << 60), toml)
    assert found.rule.code == "MC604" and found.help is not None and found.help.endswith("256, 512, 1024")
