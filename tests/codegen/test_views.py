"""Decisions of the generated code, one by one: regions, names, guards, chunks, closes, needs. Programs are IR text."""

from __future__ import annotations

import pytest

from mstarc.codegen.render import render
from mstarc.ir.core import Program
from mstarc.ir.text import parse_program
from mstarc.ir.verify import verify
from mstarc.passes.form_regions import form_regions

DECLS = """mstarc.ir 1
model t
config eos = 7
param p: int low 1 high 9 = 3
param flag: bool = false
cache kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
context main on kv max 100
context side on kv max 100
sampler pick(temperature = 1)
node n: stateless {
  op f(x: i64[]) -> (y: i64[])
  op at(x: i64[], where: host i64[]) -> (y: i64[])
  op wide(x: i64[]) -> (a: i64[], b: i64[], c: i64[])
  op maybe(x: i64[], y: i64[]?) -> (z: i64[])
  op grow(x: i64[]) -> (y: f32[dim.F])
  op row(x: i64[]) -> (y: f32[4])
}
node llm: transformer on kv {
  op read(ids: i64[dim.T]) -> (logits: f32[40]) { attend causal positions seq takes dim.T }
  op two(rows: f32[dim.N, 4], ids: i64[dim.T]) -> () { attend full positions seq takes 2 * dim.N + dim.T }
  op step(token: i64[]) -> (logits: f32[40]) { attend causal positions seq takes 1 }
}
stream s: i64[] by fixed(size = 1) at_end partial capacity 4
"""
REQUEST = "request r(%0 start: host i64[]) -> (m) {\n  call w(%0)\n}\n"


def program(walks: str, request: str = REQUEST, extra: str = "") -> Program:
    found = parse_program(DECLS + extra + walks + request)
    verify(found)
    return found


def in_loop(
    body: str, carried: str = "%1 x: i64[] = %0 then {end} -> %9 y: i64[]", kind: str = "max param.p"
) -> Program:
    """A walk `w` with one loop `l` that carries x and ends with `end`."""
    end = "%2" if "%2 " in body else "%1"
    last = 3 if "%3 " in body else 2 if "%2 " in body else 1
    carry = carried.format(end=end).replace("%9", f"%{last + 1}")
    return program(f"walk w(%0 v: i64[]) {{\n  loop l {kind}\n    carry {carry}\n  do {{\n{body}\n  }}\n}}\n")


def is_region(found: Program) -> bool:
    return "l" in form_regions(found.walks[0], found)


def worker(found: Program) -> str:
    return render(found, "t.walk")["worker.py"]


def conductor(found: Program) -> str:
    return render(found, "t.walk")["conductor.py"]


# -------------------------------------------------------------------------------------------------------------- regions


@pytest.mark.parametrize(
    "body",
    [
        "%2 y2: i64[] = invoke n.f(%1)",
        "%2 y2: i64[] = compute %1 + 1",
        "emit %1 as m",
        "send %1 to s",
        "stop %1 == config.eos and not param.flag with (%1)\n%2 y2: i64[] = invoke n.f(%1)",
        "stop iter.l > 3 with (%1)",
        "%2 y2: i64[] = invoke n.maybe(%1, _)",
        "when param.flag {\nemit %1 as m\n}",
        "%2 y2: f32[40] = invoke llm.step(%1) writes main\n%3 t: i64[] = sample pick(%2) site \"s\"",
    ],
)  # fmt: skip
def test_straight_line_device_work_is_a_region(body: str) -> None:
    if "sample" in body:
        found = in_loop(body, "%1 x: i64[] = %0 then %3 -> %9 y: i64[]")
    else:
        found = in_loop(body)
    assert is_region(found)
    assert "yield walk.loop(" in worker(found)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        ("%2 * param.p", "y2 * b.number(lambda row: row.params.p)[:, None]"),
        ("%2 - (1 - iter.l / param.p)", "y2 - b.number(lambda row: 1 - row.iter / row.params.p)[:, None]"),
        ("config.eos * %2", "b.config.eos * y2"),
        ("%2 * %1", "y2 * x[:, None]"),
    ],
)
def test_one_number_a_row_goes_with_all_that_the_row_holds(expr: str, text: str) -> None:
    body = f"%2 y2: f32[4] = invoke n.row(%1)\n%3 q: f32[4] = compute {expr}"
    found = in_loop(body, "%1 x: i64[] = %0 then %1 -> %9 y: i64[]")
    assert is_region(found)
    assert f"q = {text}\n" in worker(found)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("when param.flag {\nemit 3 as m\n}", "a value without rows behind a condition"),
        (
            "when param.flag {\nemit %1 as m\n}\nwhen param.p > 2 {\nemit %1 as m\n}\nwhen param.p > 4 {\nemit %1 as m\n}",
            "three conditions would be eight bodies",
        ),
        ("when iter.l > 2 {\nemit %1 as m\n}", "a condition over `iter` where the number of iterations is not known"),
        (
            "send %1 to s\nsend %1 to s",
            "credit is made sure of before an iteration: two sends ask for more than the language",
        ),
        ("%2 y2: i64[] = invoke n.at(%1, 3)", "an argument for the host"),
        ("emit 3 as m", "a value without rows"),
        ("emit %1 as m(rate = param.p)", "an attribute would be one value for all rows"),
        ("drop main", "contexts are per request"),
    ],
)
def test_other_loops_are_coroutines(body: str, why: str) -> None:
    found = in_loop(body, "%1 x: i64[] = %0 then %1 -> %9 y: i64[]")
    assert not is_region(found), why
    assert "yield walk.loop(" not in worker(found)


GUARDED = """when not param.flag {
  %2 y2: i64[] = invoke n.f(%1)
  emit %2 as m
} -> (%2 to %3 y3: i64[]?)
%4 z: i64[] = invoke n.maybe(%1, %3)"""


def test_a_condition_of_the_request_chooses_between_two_bodies() -> None:
    text = worker(in_loop(GUARDED, "%1 x: i64[] = %0 then %4 -> %5 y: i64[]"))
    assert "if walk.params.flag:\n            l = self.w_l\n        else:\n            l = self.w_l_2\n" in text
    assert 'loop l of walk w when flag"""\n        z = b.call("n.maybe", x, ABSENT)\n        return (z,)' in text
    assert (
        'when not flag"""\n        y2 = b.call("n.f", x)\n        b.emit("m", y2)\n        z = b.call("n.maybe", x, y2)'
        in text
    )


def test_a_condition_over_iter_is_tabulated_before_the_loop() -> None:
    body = GUARDED.replace("not param.flag", "iter.l % 2 == 0")
    text = worker(in_loop(body, "%1 x: i64[] = %0 then %4 -> %5 y: i64[]", "times 3"))
    assert "for l_iter in range(3):\n            if l_iter % 2 == 0:\n                l_items.append(self.w_l)" in text
    assert 'yield walk.loop("l", self.w_l, "times", 3, carry=(v,), bodies=l_items)' in text


def test_bodies_that_are_the_same_are_one() -> None:
    body = "when param.flag {\n%2 y2: i64[] = compute %1 + 1\n}\nemit %1 as m"
    found = in_loop(
        body.replace("%2 y2: i64[] = compute %1 + 1", "emit %1 as m"), "%1 x: i64[] = %0 then %1 -> %9 y: i64[]"
    )
    assert len(form_regions(found.walks[0], found)["l"].methods()) == 2
    both = "when param.flag {\nemit %1 as m\n}\nwhen not param.flag {\nemit %1 as m\n}"
    assert len(form_regions((same := in_loop(both)).walks[0], same)["l"].methods()) == 1


TABLE = """walk w(%0 v: i64[], %1 t: i64[dim.N]) {{
  loop l {kind}
    carry %2 x: i64[] = %0 then %3 -> %4 z: i64[]
  do {{
    %3 y: i64[] = compute %2 + {read}
  }}
}}
"""
TABLE_REQUEST = "request r(%0 start: host i64[], %1 t: host i64[dim.N]) -> (m) {\n  call w(%0, %1)\n}\n"


def test_rows_by_iter_are_a_table_of_as_many_rows_as_there_can_be_iterations() -> None:
    found = program(TABLE.format(kind="times 3", read="%1[iter.l] * %1[iter.l + 2]"), TABLE_REQUEST)
    text = worker(found)
    assert "fixed=(walk.rows(t, 3 + 2, 5),)" in text
    assert "y = x + b.at(t, b.iter) * b.at(t, b.iter + 2)" in text


def test_a_table_has_a_row_even_if_nothing_reads_it() -> None:
    found = program(TABLE.format(kind="times 0", read="%1[iter.l]"), TABLE_REQUEST)
    assert "fixed=(walk.rows(t, 0, 1),)" in worker(found)


@pytest.mark.parametrize(
    ("kind", "read"),
    [("max 3", "%1[iter.l]"), ("times 3", "%1[iter.l - 1]"), ("times 5000", "%1[iter.l]")],
)
def test_other_reads_of_an_open_length_stay_outside(kind: str, read: str) -> None:
    assert not is_region(program(TABLE.format(kind=kind, read=read), TABLE_REQUEST)), "no bound, or no row for sure"


OPEN = """walk w(%0 v: i64[dim.N], %1 t: i64[dim.M]) {
  loop l times 2
    carry %2 x: i64[dim.N] = %0 then %3 -> %4 z: i64[dim.N]
  do {
    %3 y: i64[dim.N] = compute EXPR
  }
}
"""
OPEN_REQUEST = "request r(%0 start: host i64[dim.N], %1 t: host i64[dim.M]) -> (m) {\n  call w(%0, %1)\n}\n"


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        ("%2 + %2", "x + x"),
        ("%2 * param.p - iter.l", "x * b.params.p - b.iter"),
        ("%2 + %1[0]", "x + b.at(t, 0)"),
        ("(%1[iter.l] + 1) * %2", "(b.at(t, b.iter) + 1) * x"),
    ],
)
def test_values_of_open_length_are_kept_request_by_request(expr: str, text: str) -> None:
    """So a number needs no dims to stand beside them."""
    found = program(OPEN.replace("EXPR", expr), OPEN_REQUEST)
    assert form_regions(found.walks[0], found)["l"].ragged
    assert f"y = {text}\n" in worker(found)
    assert 'RAGGED = ("w_l",)' in worker(found)


def test_a_result_of_open_length_makes_its_region_ragged() -> None:
    found = in_loop("%2 y2: f32[dim.F] = invoke n.grow(%1)", "%1 x: i64[] = %0 then %1 -> %9 y: i64[]")
    assert form_regions(found.walks[0], found)["l"].ragged


def test_a_number_may_be_an_argument_of_all_rows() -> None:
    found = in_loop("%2 y2: i64[] = invoke n.f(3)")
    assert 'y2 = b.call("n.f", 3)' in worker(found)


PARALLEL = """parallel {
%2 a: i64[] = invoke llm.peek(%1, param.p + 1) reads main
%3 c: i64[] = invoke llm.peek(%1, param.p + 1) reads side
when iter.l > 0 {
%4 d: i64[] = invoke n.f(%1)
} -> (%4 to %5 d2: i64[]?)
}
%6 y2: i64[] = invoke n.maybe(%2, %5)
%7 z2: i64[] = compute %6 + %3"""


def test_calls_of_a_parallel_are_arms_and_what_they_share_is_computed_once() -> None:
    """So equal calls are known to be equal."""
    peek = "  op peek(x: i64[], t: f32[]) -> (y: i64[]) { attend full positions same takes 2 frozen }\n"
    decls = DECLS.replace("  op step(", peek + "  op step(")
    body = f"walk w(%0 v: i64[]) {{\n  loop l times 3\n    carry %1 x: i64[] = %0 then %7 -> %8 y: i64[]\n  do {{\n{PARALLEL}\n  }}\n}}\n"
    found = parse_program(decls + body + REQUEST)
    verify(found)
    text = worker(found)
    assert (
        "t = b.number(lambda row: row.params.p + 1)\n        a, c, d = b.parallel(\n"
        '            b.arm("llm.peek", x, t, reads=("main",)), b.arm("llm.peek", x, t, reads=("side",)), b.arm("n.f", x)\n'
    ) in text
    assert (
        'a, c = b.parallel(b.arm("llm.peek", x, t, reads=("main",)), b.arm("llm.peek", x, t, reads=("side",)))' in text
    )
    assert "RAGGED" not in text


def test_logic_of_rows_and_what_lives_after_a_stop() -> None:
    body = "%2 y2: i64[] = invoke n.f(%1)\nstop %1 == config.eos and not param.flag or %2 > 3 with (%1)\nemit %2 as m"
    text = worker(in_loop(body, "%1 x: i64[] = %0 then %2 -> %9 y: i64[]"))
    stop = "b.stop((x == b.config.eos) & ~b.params.flag | (y2 > 3), carried=(x,), live=(y2,))"
    assert f"(y2,) = {stop}" in text


def test_values_from_outside_are_fixed() -> None:
    found = program(
        """walk w(%0 v: i64[]) {
  %1 k: i64[] = invoke n.f(%0)
  loop l times 2
    carry %2 x: i64[] = %0 then %3 -> %4 z: i64[]
  do {
    stop %2 > %1 with (%2)
    %3 y: i64[] = compute %2 + %1
  }
  emit %4 as m
}
"""
    )
    text = worker(found)
    assert '(z,) = yield walk.loop("l", self.w_l, "times", 2, carry=(v,), fixed=(k,))' in text
    assert "def w_l(self, b: Batch, x: Array, k: Array)" in text
    assert "        x, k = b.stop(x > k, carried=(x,), live=(x, k))\n" in text


# --------------------------------------------------------------------------------------------------------- coroutines


def test_only_what_is_used_is_asked_for() -> None:
    text = worker(
        program(
            """walk w(%0 v: i64[]) {
  %1 a: i64[], _, %2 c: i64[] = invoke n.wide(%0)
  _, %3 only: i64[], _ = invoke n.wide(%1)
  emit %3 as m
  emit %2 as m
}
"""
        )
    )
    assert 'a, c = yield walk.call("n.wide", v, only=(0, 2))' in text
    assert 'only = yield walk.call("n.wide", a, only=(1,))' in text


def test_a_guarded_value_is_absent_otherwise() -> None:
    text = worker(
        program(
            """walk w(%0 v: i64[]) {
  when param.flag {
    %1 a: i64[] = invoke n.f(%0)
  } -> (%1 to %2 b: i64[]?)
  %3 c: i64[] = invoke n.maybe(%0, %2)
  emit %3 as m
}
"""
        )
    )
    assert "        if walk.params.flag:\n            a = yield walk.call(" in text
    assert "        else:\n            a = ABSENT\n" in text
    assert 'walk.call("n.maybe", v, a)' in text


def test_names_that_python_or_the_code_itself_has() -> None:
    text = worker(
        program(
            """walk w(%0 self: i64[]) {
  %1 class: i64[] = invoke n.f(%0)
  %2 walk: i64[] = invoke n.f(%1)
  %3 print: i64[] = compute %2 + %1
  emit %3 as m
}
"""
        )
    )
    compile(text, "worker.py", "exec")
    assert "def w(self, walk: Walk, self_: Array)" in text
    assert "class_ = yield" in text
    assert "print_ = walk_ + class_" in text


def test_several_streams_are_taken_jointly() -> None:
    extra = "stream t: i64[] by fixed(size = 1) at_end partial capacity 4\n"
    text = worker(
        program(
            "walk w(%0 v: i64[]) {\n  for %1 a: chunk(s, i64[]), %2 b: chunk(t, i64[]) in s, t {\n"
            "    emit %1 as m(new = %2.new)\n  }\n}\n",
            extra=extra,
        )
    )
    assert 'while (chunks := (yield walk.take("s", "t"))) is not ABSENT:' in text
    assert "            a, b_ = chunks\n" in text
    assert 'walk.emit("m", a.value, new=b_.new)' in text


def test_tables_are_functions_and_guidance_a_statement_of_its_own() -> None:
    text = worker(
        program(
            "walk w(%0 v: i64[]) {\n  %1 t: host int = compute shift(linspace(0, 1, 3), 2)\n"
            "  emit %0 + guide(guide(%0, %0, 2), %0, 3) as m\n}\n"
        )
    )
    assert "Walk, WorkerProgram, linspace, shift" in text.replace("\n", " ")
    assert "t = shift(linspace(0, 1, 3), 2)" in text
    lines = [line.strip() for line in text.splitlines() if "guide" in line]
    assert lines == [
        "guided = walk.guide(v, v, 2)",
        "guided_ = walk.guide(guided, v, 3)",
        'walk.emit("m", v + guided_)',
    ]


# ---------------------------------------------------------------------------------------------------------- conductor

SENDER = "walk w(%0 v: i64[]) {\n  send %0 to s\n}\n"
TAKER = "walk u() {\n  for %0 c: chunk(s, i64[]) in s {\n    emit %0 as m\n  }\n}\n"


def arm(body: str) -> str:
    """A request whose first arm is `body` and whose second takes."""
    return (
        f"request r(%0 start: host i64[], %1 parts: host list(text)) -> (m) {{\n  together {{\n    arm a {{\n{body}\n    }}\n"
        "    arm b {\n      call u()\n    }\n  }\n}\n"
    )


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ("call w(%0)", ["closes"]),
        ("call w(%0)\ncall w(%0)", ["", "closes"]),
        ("call w(%0)\nif param.flag {\ncall w(%0)\n}", ["", "closes"]),
        ("if param.flag {\ncall w(%0)\n} else {\ncall w(%0)\n}", ["closes", "closes"]),
        ("parts %1 {\ncase text %2 part: host text {\ncall w(%0)\n}\n}", [""]),
        ("parts %1 {\ncase text %2 part: host text {\ncall w(%0)\n}\n}\ncall w(%0)", ["", "closes"]),
    ],
)
def test_the_last_sender_of_an_arm_closes(body: str, calls: list[str]) -> None:
    found = program(SENDER + TAKER, arm(body))
    lines = [line.strip() for line in conductor(found).splitlines() if '("w"' in line]
    assert ["closes" if 'closes=("s",)' in line else "" for line in lines] == calls


def test_nothing_is_closed_outside_of_together() -> None:
    assert "closes" not in conductor(program(SENDER + TAKER, REQUEST))


def need_of(walk: str, params: str = "%0 ids: i64[dim.T]") -> list[str]:
    """The body of `w_need`."""
    found = parse_program(DECLS + f"walk w({params}) {{\n{walk}\n}}\n")
    text = conductor(found).split("def w_need(")[1].split('"""\n')[1]
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_needs() -> None:
    assert need_of("_ = invoke llm.read(%0) writes main, side") == [
        "rows_T = need.rows(ids)",
        'need.write("main", rows_T)',
        'need.write("side", rows_T)',
    ]
    two = need_of("invoke llm.two(%1, %0) writes main", "%0 ids: i64[dim.T], %1 rows: f32[dim.M, 4]")
    assert two[:2] == ["rows_M = need.rows(rows)", "rows_T = need.rows(ids)"]
    assert two[2] == 'need.write("main", None if None in (rows_M, rows_T) else 2 * rows_M + rows_T)'


def test_needs_of_loops_multiply_and_of_streams_are_unknown() -> None:
    inner = "loop b times 4 do {\n_ = invoke llm.step(%0) writes main\n}"
    assert need_of(f"loop a max param.p do {{\n{inner}\n}}", "%0 v: i64[]") == [
        'need.write("main", param)'.replace("param", "request.params.p * 4")
    ]
    chunks = need_of("for %1 c: chunk(s, i64[]) in s {\n_ = invoke llm.step(%1) writes main\n}", "%0 v: i64[]")
    assert chunks == ['need.write("main", None)']


def test_needs_of_drops_and_forks_count_only_where_they_are_sure() -> None:
    sure = need_of("fork side from main\ndrop main", "%0 v: i64[]")
    assert sure == ['need.fork("side", "main")', 'need.drop("main")']
    guarded = need_of("when param.flag {\nfork side from main\ndrop main\n}", "%0 v: i64[]")
    assert guarded == ['need.write("side", None)']


def test_hooks_and_tables() -> None:
    extra = """let loud = wants(member.m) and param.p > 2
param q: int low 0 high 9 = if let.loud then 5 else param.p
param voice: enum(low, high) = member.high
context extra on kv when let.loud
"""
    text = conductor(program("walk w(%0 v: i64[]) {\n  when let.loud {\n    emit %0 as m\n  }\n}\n", extra=extra))
    assert 'Param("q", "int", computed=True, low=0, high=9)' in text
    assert 'Param("voice", "enum", default="high", members=("low", "high"))' in text
    assert 'SWITCHED = ("extra",)' in text
    assert 'LETS = ("loud",)' in text
    assert 'return request.wants("m") and request.params.p > 2' in text
    assert "return 5 if self.let_loud(request) else request.params.p" in text
    assert "return bool(self.let_loud(request))" in text
