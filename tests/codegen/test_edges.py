"""Programs that random ones do not reach: names that Python has, loops that gather under one name, streams with one end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mstarc.codegen.errors import NotBuilt
from mstarc.codegen.render import render
from mstarc.interp import HashMachine, interpret
from mstarc.ir.core import Program
from mstarc.ir.text import parse_program
from mstarc.ir.verify import verify
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.package import load_conductor
from tests.codegen.harness import events_of, linked_of, plain, serving
from tests.interp.random_programs import DECLS


def program(text: str) -> Program:
    parsed = parse_program(DECLS.format(p=3, q="true") + text)
    verify(parsed)
    return parsed


ONE_WALK = """request r(%0 start: host i64[]) -> (m0) {
  call w(%0)
}
"""
OUTER_COUNTER = """walk w(%0 s: i64[]) {
  loop outer times 3
    carry %1 a: i64[] = %0 then %4 -> %5 r: i64[]
  do {
    loop inner times 2
      carry %2 x: i64[] = %1 then %3 -> %4 c: i64[]
    do {
      %3 d: i64[] = compute %2 * 3 + iter.outer
      emit %3 as m0
    }
  }
  emit %5 as m0
}
"""
ONE_GATHER_NAME = """walk w(%0 s: i64[]) {
  loop outer times 3
    carry %1 a: i64[] = %0 then %4 -> %6 r: i64[]
    gather xs -> %7 xs: i64[dim.R]
  do {
    collect %1 as xs
    loop inner times 2
      carry %2 x: i64[] = %1 then %3 -> %4 c: i64[]
      gather xs -> %5 ys: i64[dim.Q]
    do {
      %3 d: i64[] = compute %2 * 3 + 1
      when param.q {
        collect %3 as xs
      }
    }
    emit %5 as m0
  }
  emit %7 as m0
}
"""
ENDS = """stream s0: i64[] by fixed(size = 2) at_end drop capacity 2
walk w(%0 s: i64[]) {
  loop l times 6
    carry %1 a: i64[] = %0 then %2 -> %3 r: i64[]
  do {
    send %1 to s0
    %2 d: i64[] = compute %1 + 1
  }
  emit %3 as m0
}
walk v(%0 s: i64[]) {
  for %1 x: chunk(s0, i64[]) in s0 {
    emit %1 as m1
  }
  emit %0 as m1
}
walk u(%0 s: i64[]) {
  emit %0 as m2
}
"""


def arms(outputs: str, **calls: str) -> str:
    body = "".join(f"    arm {label} {{\n      call {walk}(%0)\n    }}\n" for label, walk in calls.items())
    return f"request r(%0 start: host i64[]) -> ({outputs}) {{\n  together {{\n{body}  }}\n}}\n"


CASES = {
    "a loop inside reads the counter of the one around": OUTER_COUNTER + ONE_WALK,
    "two loops, one in the other, gather under one name": ONE_GATHER_NAME + ONE_WALK,
    "items without a consumer, outside of arms": ENDS + ONE_WALK,
    "items without a consumer, in an arm": ENDS + arms("m0, m2", a="w", b="u"),
    "a consumer without items": ENDS + arms("m1, m2", a="v", b="u"),
    "both": ENDS + arms("m0, m1", a="w", b="v"),
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", CASES)
async def test_it_means_what_the_interpreter_says(
    case: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = program(CASES[case])
    wanted: dict[str, list[Any]] = {}
    for event in interpret(parsed, HashMachine(parsed), {"start": 3}).events:
        wanted.setdefault(event.modality, []).append((plain(event.value), event.attrs))
    async with serving(parsed, linked_of(parsed, tmp_path, ranks), monkeypatch, None) as (engine, _):
        run = await engine.submit("r", {"start": 3}, {}, seed=0, deadline_s=5.0)
        assert await events_of(run) == wanted


NESTED = """request r(%0 start: host i64[]) -> (m0, m1, m2) {
  together {
    arm a {
      together {
        arm c {
          call w(%0)
        }
        arm d {
          call u(%0)
        }
      }
    }
    arm b {
      call v(%0)
    }
  }
}
"""
PLAIN = "walk w(%0 s: i64[]) {\n  emit %0 as m0\n}\n"
LOOP = "loop l times 3\n    carry %1 a: i64[] = %0 then %1 -> %2 r: i64[]\n  do {}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ENDS + NESTED, "stream `s0` from a `together` to an arm outside of it"),
        (PLAIN.replace("walk w", "walk class") + ONE_WALK.replace("call w", "call class"), "walk class"),
        (PLAIN + ONE_WALK.replace("request r", "request def"), "request def"),
        (
            PLAIN + ENDS.replace("walk w", "walk w2") + arms("m0, m2", lambda_="w", b="u").replace("lambda_", "lambda"),
            "arm `lambda`",
        ),
        (
            PLAIN.replace("  emit", f"  {LOOP}\n  emit") + PLAIN.replace("walk w", "walk w_l") + ONE_WALK,
            "loop l of walk w and walk w_l in one model: both become `w_l`",
        ),
        (
            ENDS + arms("m0, m2", a="w", b="u") + ONE_WALK.replace("request r", "request r_a"),
            "arm a and request r_a in one model: both become `r_a`",
        ),
    ],
)
def test_what_has_no_code_is_refused(text: str, says: str) -> None:
    with pytest.raises(NotBuilt, match="not built yet: ") as caught:
        render(program(text), "x.walk")
    assert says in str(caught.value)


WORDS = """let global = param.p + 1
extern lay(x: i64[]) -> (part: struct part(class: i64[dim.T]))
walk w(%0 part: struct part(class: i64[dim.T])) {
  %1 z: f32[dim.T, let.global] = noise site "z"
  emit %1 as m0
}
request r(%0 def: host i64[]) -> (m0) {
  %1 part: host struct part(class: i64[dim.T]) = extern lay(%0)
  call w(%1)
}
"""


def test_names_of_the_language_that_are_words_of_python() -> None:
    """Inputs, lets and fields are attributes, whatever they are called; a let that only a dim reads reaches the walk."""
    parsed = parse_program("mstarc.ir 1\nmodel words\nparam p: int = 3\n" + WORDS)
    verify(parsed)
    files = render(parsed, "x.walk")
    for name, text in files.items():
        compile(text, name, "exec")
    assert 'getattr(request.inputs, "def")' in files["conductor.py"]
    assert 'LETS = ("global",)' in files["conductor.py"]
    assert 'walk.noise("f32", (len(getattr(part, "class")), getattr(walk.host, "global")), "z")' in files["worker.py"]


TAKES = """mstarc.ir 1
model takes
cache kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
context main on kv max 64
node lm: transformer on kv {
  op read(gap: host i64[], other: i64[]?, ids: i64[dim.T]) -> (y: f32[2]) { attend causal positions seq }
}
walk w(%0 ids: i64[dim.N]) {
  %1 y: f32[2] = invoke lm.read(3, _, %0) writes main
  emit %1 as m0
}
request r(%0 ids: host i64[dim.N]) -> (m0) {
  call w(%0)
}
"""


def test_entries_are_counted_by_the_token_argument() -> None:
    """Not by a host number or an optional id before it: admission would reserve one entry for the whole prompt."""
    parsed = parse_program(TAKES)
    verify(parsed)
    text = render(parsed, "x.walk")["conductor.py"]
    assert 'rows_N = need.rows(ids)\n        need.write("main", rows_N)' in text


TABLE = """walk w(%0 v: i64[], %1 t: i64[dim.N]) {
  loop l times 3
    carry %2 x: i64[] = %0 then %3 -> %4 z: i64[]
  do {
    %3 y: i64[] = compute %2 * 2 + %1[iter.l]
    when iter.l != 1 {
      emit %3 as m0
    }
  }
  emit %4 as m0
}
request r(%0 start: host i64[], %1 t: host i64[dim.N]) -> (m0) {
  call w(%0, %1)
}
"""


async def test_a_table_with_too_few_rows_fails_its_own_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows read by `iter` in bodies that change from step to step; longer values are cut, and nobody else is touched."""
    found = program(TABLE)
    async with serving(found, linked_of(found, tmp_path), monkeypatch, None) as (engine, _):
        short, exact, long = [
            await engine.submit("r", {"start": 1, "t": np.array(rows)}, {})
            for rows in ([1, 2], [1, 2, 3], [1, 2, 3, 4])
        ]
        wanted: dict[str, Any] = {"m0": [(3, {}), (19, {}), (19, {})]}
        assert [await events_of(run) for run in (exact, long)] == [wanted, wanted]
        with pytest.raises(RequestFailed, match="3 rows are read of a value that has 2"):
            await events_of(short)


async def test_a_fork_of_what_was_never_written_is_empty_and_needs_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No op of the rank uses the cache."""
    text = "context c on kv\ncontext d on kv\nwalk w(%0 s: i64[]) {\n  fork d from c\n  emit %0 as m0\n}\n"
    found = program(text + ONE_WALK)
    linked = linked_of(found, tmp_path, bound=dict.fromkeys(("n", "own0"), "tests.codegen.tensor_hash.Plain"))
    cluster = LocalCluster(linked)
    engine = Engine(linked, load_conductor(linked), cluster)
    await engine.start()
    try:
        assert await events_of(await engine.submit("r", {"start": 4}, {})) == {"m0": [(4, {})]}
    finally:
        await engine.stop()
