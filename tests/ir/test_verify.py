"""The verifier: a good program passes, and each rule is broken by one edit of its text."""

from __future__ import annotations

import pytest

from mstarc.ir.core import Program
from mstarc.ir.errors import VerifyError
from mstarc.ir.text import parse_program
from mstarc.ir.verify import OP_RULES, PROGRAM_RULES, UNIT_RULES, verify

GOOD = """mstarc.ir 1
model good
config vocab from "llm.vocab_size"
param on: bool = true
param most: int = 3
extern ids(t: text) -> (t: i64[dim.T])
extern cut(state: int, item: int) -> (state: int, cut: bool)
cache kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
cache ear(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
context main on kv
context copy on kv
context heard on ear
sampler pick(temperature = 0) over main
node llm: transformer on kv {
  op read(ids: i64[dim.T], bias: f32[]?) -> (logits: f32[config.vocab]) { attend causal positions seq }
  op peek(x: i64[], n: host i64[]) -> (y: i64[], z: i64[]) { frozen takes 1 }
  op hear(x: i64[]) -> () { cross takes 1 }
}
node plain: stateless {
  op f(x: i64[]) -> (y: i64[])
}
stream s: i64[] by fixed(size = 1) at_end drop capacity 1
stream q: i64[] by phrase(cut = "cut", max = 4) capacity 4
walk w(%0 ids: i64[dim.T]) -> (last: i64[] = %6, all: i64[dim.K] = %7) {
  %1 logits: f32[config.vocab] = invoke llm.read(%0, _) writes main, copy
  %2 first: i64[] = sample pick(%1) site "first"
  loop up max param.most
    carry %3 token: i64[] = %2 then %5 -> %6 end: i64[]
    gather all -> %7 all: i64[dim.K]
  do {
    stop %3 == 3 with (%3)
    collect %3 as all
    send %3 to s
    emit iter.up as text
    %4 y: i64[], _ = invoke llm.peek(%3, iter.up) reads main
    %5 next: i64[] = invoke plain.f(%4)
  }
  invoke llm.hear(%6) writes main reads heard
  fork copy from main
  when param.on {
    %8 inner: i64[] = compute %6 + 1
  } -> (%8 to %9 extra: i64[]?)
  drop copy, main
}
walk take() {
  for %0 c: chunk(s, i64[]) in s {
    when %0.first {
      emit %0 as text
    }
  }
}
request r(%0 t: host text, %1 parts: host list(a | b)) -> (text) {
  %2 ids: host i64[dim.T] = extern ids(%0)
  require param.most > 1 says "most > 1"
  parts %1 {
    case a %3 p: host struct a(x: i64[]) {
      emit_nothing
    }
  }
  together {
    arm one {
      %4 last: i64[], _ = call w(%2)
    }
    arm two {
      call take()
    }
  }
}
""".replace("      emit_nothing\n", '      require true says ""\n')


def test_a_good_program_passes() -> None:
    verify(parse_program(GOOD))
    verify(Program("empty"))


@pytest.mark.parametrize(
    ("rule", "old", "new", "says"),
    [
        # visible
        ("visible", "plain.f(%4)", "plain.f(%7)", "%7 is not visible"),
        ("visible", "llm.hear(%6)", "llm.hear(%5)", "%5 is not visible"),
        ("visible", "= %2 then %5 ", "= %2 then %8 ", "%8, carried to the next iteration"),
        ("visible", "call take()", "emit %4 as text", "%4 is not visible"),
        # place
        ("place", "      call take()", "      drop copy", "`Drop` may not stand here"),
        ("place", "  drop copy, main", "  require true says \"\"", "`Require` may not stand here"),
        # declared
        ("declared", "plain.f(%4)", "plain.g(%4)", "no op `plain.g`"),
        ("declared", "sample pick(", "sample peck(", "`peck` is not among the samplers"),
        ("declared", "send %3 to s", "send %3 to u", "`u` is not among the streams"),
        ("declared", "call take()", "call took()", "`took` is not among the walks"),
        ("declared", "fork copy from", "fork cosy from", "`cosy` is not among the contexts"),
        ("declared", "extern ids(%0)", "extern idz(%0)", "`idz` is not among the externs"),
        ("declared", "when param.on", "when param.off", "`off` is not among the params"),
        # arity
        ("arity", "llm.read(%0, _)", "llm.read(%0)", "1 arguments, not 2"),
        ("arity", "llm.read(%0, _)", "llm.read(_, %0)", "`ids` is left out but not optional"),
        ("arity", "%4 y: i64[], _ =", "%4 y: i64[] =", "1 results, not 2"),
        ("arity", "extern ids(%0)", "extern ids(%0, %0)", "2 arguments, not 1"),
        ("arity", "call w(%2)", "call w()", "0 arguments, not 1"),
        ("arity", "in s {", "in s, s {", "1 items, not 2"),
        # phase
        ("phase", "loop up max param.most", "loop up max %2", "the bound reads the device value %2"),
        ("phase", "when param.on", "when %6 == 1", "the condition reads the device value %6"),
        ("phase", "when %0.first", "when %0 == 1", "the condition reads the device value %0"),
        ("phase", "peek(%3, iter.up)", "peek(%3, %3)", "the host argument `n` reads the device value %3"),
        ("phase", "%8 inner: i64[] =", "%8 inner: host i64[] =", "%8 is host, its expression is not"),
        ("phase", "%2 first: i64[] =", "%2 first: host i64[] =", "%2 is not a device value"),
        ("phase", "%2 ids: host i64[dim.T] = extern", "%2 ids: i64[dim.T] = extern", "%2 of an extern is not host"),
        # contexts
        ("contexts", "writes main, copy", "", "an op that is not frozen writes no context"),
        ("contexts", "iter.up) reads main", "iter.up) writes main reads main", "a frozen op writes"),
        ("contexts", "iter.up) reads main", "iter.up)", "reads no context"),
        ("contexts", "writes main, copy", "writes heard", "`heard` is on `ear`, the node on `kv`"),
        ("contexts", "fork copy from main", "fork copy from heard", "of different caches"),
        ("contexts", "plain.f(%4)", "plain.f(%4) writes main", "a stateless op has no context"),
        # loop
        ("loop", "stop %3 == 3 with (%3)", "stop %3 == 3", "0 carried values, not 1"),
        ("loop", "collect %3 as all", "collect %3 as some", "loop `up` gathers no `some`"),
        ("loop", "  drop copy, main", "  stop %6 == 1", "there is no loop around it"),
        ("loop", "emit iter.up", "emit iter.down", "`iter` of `down`"),
        # phi
        ("phi", "(%8 to %9 extra: i64[]?)", "(%6 to %9 extra: i64[]?)", "%6 is not defined in the block"),
        ("phi", "(%8 to %9 extra: i64[]?)", "(%8 to %9 extra: i64[])", "`extra` is not optional"),
        # draws, carries
        ("draws", "sample pick(%1)", "sample pick(7)", "not a row of logits"),
        ("draws", "%1 logits: f32[config.vocab] =", "%1 logits: f32[] =", "not a row of logits"),
        ("carries", "-> %6 end: i64[]", "-> %6 end: f32[]", "%3 `token` has another type after the loop"),
        # dense, names, outputs
        ("dense", "%2 first: i64[] =", "%12 first: i64[] =", "%12 first is defined where %2 is due"),
        ("names", "%2 first: i64[] =", "%2 logits: i64[] =", "two values are called `logits`"),
        ("names", "arm two", "arm one", "two arms are called `one`"),
        ("outputs", "last: i64[] = %6", "last: i64[] = %5", "output `last` is %5"),
        # unique, kinds, policies, sources
        ("unique", "context copy on kv", "context main on kv", "`main` is declared twice"),
        ("unique", "op peek(", "op read(", "op `llm.read` is declared twice"),
        ("kinds", "context heard on ear", "context heard on eer", "which is no cache"),
        ("kinds", "node plain: stateless {", "node plain: stateless on kv {", "stateless node `plain` has the cache `kv`"),
        ("kinds", "node plain: stateless {", "node plain: stateless weights lm {", "which is no node"),
        ("kinds", "over main", "over mine", "which is no context"),
        ("policies", "fixed(size = 1)", "fixed(stride = 1)", "has the arguments ['stride'], not ['size']"),
        ("policies", "at_end drop", "at_end later", "the end rule `later`"),
        ("policies", 'cut = "cut"', 'cut = "cat"', "which is no extern"),
        ("sources", 'config vocab from "llm.vocab_size"', "config vocab", "config `vocab` has neither"),
    ],
)  # fmt: skip
def test_each_broken_rule_is_found(rule: str, old: str, new: str, says: str) -> None:
    assert GOOD.count(old) >= 1, old
    with pytest.raises(VerifyError) as caught:
        verify(parse_program(GOOD.replace(old, new, 1)))
    found = [v for v in caught.value.violations if f"({rule}:" in v and says in v]
    assert found, caught.value.violations


def test_every_rule_has_a_case_above() -> None:
    marks = [mark for mark in test_each_broken_rule_is_found.pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    covered = {case[0] for case in marks[0].args[1]}
    assert covered == {name for name, _, _ in (*OP_RULES, *UNIT_RULES, *PROGRAM_RULES)}


def test_all_violations_are_listed_at_once() -> None:
    with pytest.raises(VerifyError) as caught:
        verify(parse_program(GOOD.replace("plain.f(%4)", "plain.g(%7)").replace("fork copy", "fork cosy")))
    assert len(caught.value.violations) >= 3
    assert all("walk w, `" in violation for violation in caught.value.violations)
