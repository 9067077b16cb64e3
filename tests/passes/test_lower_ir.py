"""Small programs: the IR that each construct becomes, in its text form."""

from __future__ import annotations

import pytest

from mstarc.ir.core import CallWalk, Compute, Extern, Invoke, Loop, Next, Noise, Par, Sample, Stop, When
from mstarc.ir.text import print_op, print_walk
from mstarc.ir.text.expressions import print_type
from mstarc.ir.types import Lit, Ref, Tensor, Var
from tests.passes.lowered import CACHE, NODES, in_walk, ops_of, program_of, walk_of

ITEMS = "stream ones : i64 by fixed(1) after_end empty capacity 4\n"
SEND = "walk feed(x: i64) { send x -> ones }\n"


def text_of(body: str, **options: str) -> list[str]:
    """The lines of the walk's body, without indentation."""
    return [line.strip() for line in print_walk(walk_of(body, **options)).splitlines()[1:-1]]


def model_of(more: str, walk: str, body: str) -> str:
    """A model with these declarations and the request `r(x: i64)`."""
    return f"{NODES}{more}{walk}\nrequest r(x: i64) -> tensor {{ {body} }}\n"


def result_type(body: str, name: str = "y", **options: str) -> str:
    """The type of the value that a walk binds to a name."""
    walk = walk_of(body, **options)
    kinds = [op.result.type for op in ops_of(walk.body, Compute) if isinstance(op, Compute) and op.result.name == name]
    calls = [op for op in ops_of(walk.body, Invoke) if isinstance(op, Invoke)]
    kinds += [v.type for op in calls for v in op.results if v is not None and v.name == name]
    assert len(kinds) == 1
    return print_type(kinds[0]).replace("dim.", "")


def test_inner_calls_come_first_from_the_left() -> None:
    assert text_of("emit a.g(a.f(x), a.g(x, a.f(x))) as tensor") == [
        "%1 y: i64[] = invoke a.f(%0)",
        "%2 y_2: i64[] = invoke a.f(%0)",
        "%3 y_3: i64[] = invoke a.g(%0, %2)",
        "%4 y_4: i64[] = invoke a.g(%1, %3)",
        "emit %4 as tensor",
    ]


def test_names_are_unique_and_avoid_those_that_are_written() -> None:
    body = "y_2 = a.f(x)  loop l times 2 carry y = x { y = a.g(y, y_2) }  emit y as tensor"
    walk = walk_of(body)
    (loop,) = (op for op in walk.body.ops if isinstance(op, Loop))
    (call,) = (op for op in loop.body.ops if isinstance(op, Invoke))
    assert [v.name for v in (loop.carries[0].inner, *call.results, loop.carries[0].result) if v] == ["y", "y_3", "y_4"]


def test_arguments_by_name_and_optional_ones_left_out() -> None:
    walk = walk_of("emit a.g(z = a.f(x), x = x) as tensor  emit a.opt(x) as tensor")
    calls = [op for op in ops_of(walk.body, Invoke) if isinstance(op, Invoke)]
    assert calls[0].results[0] is not None
    assert calls[1].args == (Var(walk.params[0].id), Var(calls[0].results[0].id))
    assert calls[2].args == (Var(walk.params[0].id), None)


def test_discarded_and_unused_outputs_are_none() -> None:
    walk = walk_of("_, q = a.two(x)  emit q as tensor  a.none(x)")
    calls = [op for op in ops_of(walk.body, Invoke) if isinstance(op, Invoke)]
    assert calls[0].results[0] is None and calls[0].results[1] is not None and calls[1].results == ()


def test_a_stop_has_the_values_that_carried_names_have_there() -> None:
    walk = walk_of(
        "loop l max 9 carry x, y = 1 { stop when x == 1  x = a.f(x)  stop when y == 2  y = a.g(x, y) }  emit a.g(x, y) as tensor"
    )
    (loop,) = (op for op in walk.body.ops if isinstance(op, Loop))
    first, second = (op for op in loop.body.ops if isinstance(op, Stop))
    inner = [carry.inner.id for carry in loop.carries]
    new_x = next(op for op in loop.body.ops if isinstance(op, Invoke)).results[0]
    assert new_x is not None
    assert first.carried == (Var(inner[0]), Var(inner[1]))
    assert second.carried == (Var(new_x.id), Var(inner[1]))
    assert loop.carries[0].next == Var(new_x.id)


def test_a_host_number_that_is_carried_becomes_a_tensor() -> None:
    walk = walk_of("loop l times 2 carry y = 3 { y = a.f(y) }  emit y as tensor  emit x as scalar")
    (loop,) = (op for op in walk.body.ops if isinstance(op, Loop))
    (carry,) = loop.carries
    assert carry.init == Lit(3)
    assert (carry.inner.type, carry.inner.phase) == (Tensor("i64"), "device") == (carry.result.type, carry.result.phase)


def test_a_config_that_is_carried_has_the_type_that_the_body_gives() -> None:
    walk = walk_of("loop l times 2 carry y = c { y = a.make(x) }  emit y as tensor", more="config { c = a.b }\n")
    (loop,) = (op for op in walk.body.ops if isinstance(op, Loop))
    assert isinstance(loop.carries[0].inner.type, Tensor) and loop.carries[0].inner.type.dtype == "f32"


def test_loops_nest_and_results_go_up() -> None:
    body = "loop o times 2 carry x { loop i times iter + 1 carry x { x = a.at(x, iter) } }  emit x as tensor"
    assert text_of(body) == [
        "loop o times 2",
        "carry %1 x_2: i64[] = %0 then %4 -> %5 x_6: i64[]",
        "do {",
        "loop i times iter.o + 1",
        "carry %2 x_3: i64[] = %1 then %3 -> %4 x_5: i64[]",
        "do {",
        "%3 x_4: i64[] = invoke a.at(%2, iter.i)",
        "}",
        "}",
        "emit %5 as tensor",
    ]


def test_a_guard_gives_an_optional_value() -> None:
    walk = walk_of("y = a.f(x) when x == 1  emit a.opt(x, y) as tensor")
    when = next(op for op in walk.body.ops if isinstance(op, When))
    (phi,) = when.results
    assert isinstance(phi.result.type, Tensor) and phi.result.type.optional
    (inner,) = when.body.ops
    assert isinstance(inner, Invoke) and inner.results[0] is not None and phi.inner == inner.results[0].id
    opt = walk.body.ops[1]
    assert isinstance(opt, Invoke) and opt.args[1] == Var(phi.result.id)


def test_a_guard_without_a_read_result_has_no_phi() -> None:
    walk = walk_of("emit a.f(x) as tensor when x == 1")
    (when,) = walk.body.ops
    assert isinstance(when, When) and when.results == () and len(when.body.ops) == 2


def test_parallel_adds_no_scope() -> None:
    walk = walk_of("parallel { y = a.f(x)  z = a.f(x) }  emit a.g(y, z) as tensor")
    par, call, _ = walk.body.ops
    assert isinstance(par, Par) and len(par.body.ops) == 2 and isinstance(call, Invoke)


def test_chunks_are_typed_by_their_policy() -> None:
    def chunk(stream: str) -> str:
        more = f"stream s : i64 {stream} capacity 64\nwalk v(x: i64) {{ send x -> s }}\n"
        program = program_of(in_walk("for c in s { emit c as tensor }", params="", args="", more=more))
        walk = next(w for w in program.walks if w.name == "w")
        (loop,) = walk.body.ops
        return print_type(loop.items[0].type).replace("dim.", "")  # type: ignore[union-attr]

    assert chunk("by fixed(1)") == "chunk(s, i64[])"
    assert chunk("by fixed(3)") == "chunk(s, i64[3])"
    assert chunk("by fixed(3) at_end partial") == "chunk(s, i64[n])"
    assert chunk("by sliding_window(4, 2) at_end drop") == "chunk(s, i64[4])"
    assert chunk("by left_context(3, 2) at_end partial") == "chunk(s, i64[n])"


def test_next_is_absent_after_the_end_if_the_stream_says_so() -> None:
    walk = walk_of("emit a.opt(x, next(ones)) as tensor", more=ITEMS + SEND)
    taken = next(op for op in walk.body.ops if isinstance(op, Next))
    assert taken.streams == ("ones",) and taken.results[0] is not None
    assert print_type(taken.results[0].type) == "i64[]?"


def test_contexts_default_to_the_only_one() -> None:
    more = CACHE + "context main on lm max 9\n"
    body = "token = sample(s, llm.read(ids))  emit token as text  emit llm.look(y) as tensor"
    walk = walk_of(body, params="ids: i64[T], y: f32[n, 4]", args="ids, y", more=more)
    calls = [op for op in walk.body.ops if isinstance(op, Invoke)]
    assert [(c.writes, c.reads) for c in calls] == [(("main",), ()), ((), ("main",))]
    (sample,) = (op for op in walk.body.ops if isinstance(op, Sample))
    assert sample.result.type == Tensor("i64") and sample.site == "s"


def test_a_read_of_a_context_that_may_be_off_may_be_absent() -> None:
    more = CACHE + "param on : bool = true\ncontext main on lm max 9\ncontext side on lm max 9 when on\n"
    walk = walk_of("v = llm.look(y) reads side  emit present(v) as tensor", params="y: f32[n, 4]", args="y", more=more)
    (call,) = (op for op in walk.body.ops if isinstance(op, Invoke))
    assert call.results[0] is not None and print_type(call.results[0].type).endswith("?")


def test_takes_is_what_the_token_parameter_says() -> None:
    program = program_of(in_walk("emit x as tensor", more=CACHE + "context main on lm max 9\n"))
    ops = {op.name: op for op in next(n for n in program.nodes if n.name == "llm").ops}
    assert [ops[n].attrs.takes for n in ("read", "step")] == [Ref("dim", "T"), Lit(1)]


def test_noise_has_the_site_of_its_target() -> None:
    walk = walk_of("y = noise(f32[n, 4])  emit a.rows(y) as tensor", params="x: f32[n]", args="x")
    (noise,) = (op for op in walk.body.ops if isinstance(op, Noise))
    assert noise.site == "y" and print_type(noise.result.type) == "f32[dim.n, 4]"


@pytest.mark.parametrize(
    ("body", "params", "expected"),
    [
        ("y = a.rows(x)", "x: f32[T, 4]", "f32[T]"),
        ("y = a.twice(x)", "x: f32[T, 4]", "f32[2 * T]"),
        ("y = a.split(a.twice(x))", "x: f32[T, 4]", "f32[T]"),
        ("y = a.split(x)", "x: f32[8]", "f32[4]"),
        ("y = a.pair(a.make(1), x)", "x: f32[T]", "f32[T]"),
        ("y = a.split(x)", "x: f32[T + T]", "f32[T]"),
        ("y = a.four(a.make(1))  emit x as tensor", "x: f32[T]", "f32[4]"),
    ],
)
def test_dims_are_unified_in_each_call(body: str, params: str, expected: str) -> None:
    walk = walk_of(f"{body}  emit y as tensor", params=params)
    last = [op for op in walk.body.ops if isinstance(op, Invoke)][-1]
    assert last.results[0] is not None
    assert print_type(last.results[0].type).replace("dim.", "") == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("v + 1", "f32[n]"),
        ("i / 2", "f32[]"),
        ("i // 2", "i64[]"),
        ("v * v", "f32[n]"),
        ("v[0]", "f32[]"),
        ("v[1:3]", "f32[n_2]"),
        ("v > 0", "bool[n]"),
        ("b + v", "f32[n]"),
        ("len(v) + 1", "int"),
        ("if true then v else v", "f32[n]"),
        ("linspace(0, 1, 5)", "f32[5]"),
        ("shift(linspace(0, 1, 5), 2)[1]", "f32[]"),
        ("max(1, 2.5)", "float"),
        ("min(1, len(v))", "int"),
        ("last(v, 3)", "f32[n_2]"),
        ("not true", "bool"),
    ],
)
def test_types_of_expressions(value: str, expected: str) -> None:
    params = "v: f32[n], b: bf16[n], i: i64"
    uses = "emit v as tensor  emit b as tensor  emit i as scalar"
    assert result_type(f"y = {value}  emit y as tensor  {uses}", params=params, args="v, b, i") == expected


def test_a_static_loop_says_how_long_its_collection_is() -> None:
    def collected(loop: str) -> str:
        walk = walk_of(f"{loop}  emit ys as tensor")
        found = next(op for op in walk.body.ops if isinstance(op, Loop))
        return print_type(found.gathers[0].result.type).replace("dim.", "")

    assert collected("loop l times 3 carry x { x = a.f(x)  collect x as ys }") == "i64[3]"
    assert collected("loop l times 3 carry x { x = a.f(x)  collect x as ys when iter == 1 }") == "i64[n_ys]"
    assert collected("loop l times 3 carry x { stop when x == 1  x = a.f(x)  collect x as ys }") == "i64[n_ys]"
    assert collected("loop l max 3 carry x { stop when x == 1  x = a.f(x)  collect x as ys }") == "i64[n_ys]"
    assert collected("loop l times 3 carry x { x = a.f(x)  collect a.make(x) as ys }") == "f32[n_ys]"


def test_a_walk_parameter_is_host_if_all_calls_pass_host_values() -> None:
    more = "walk v(n: i64) -> k: i64 { k = a.f(n) }\n"
    text = model_of(more, "walk w(n: i64) { emit a.at(1, n) as tensor }", "v(x)  w(x)")
    assert [p.phase for w in program_of(text).walks for p in w.params] == ["host", "host"]
    text = model_of(more, "walk w(n: i64) { emit n as tensor }", "k = v(x)  w(x)  w(k)")
    assert [p.phase for w in program_of(text).walks for p in w.params] == ["host", "device"]


def test_externs_take_device_values_and_give_host_values() -> None:
    more = "extern show(x: int) -> int\n"
    walk = walk_of("y = show(a.f(x))  loop l times y carry x { x = a.f(x) }  emit x as tensor", more=more)
    call = next(op for op in walk.body.ops if isinstance(op, Extern))
    assert call.results[0] is not None and call.results[0].phase == "host"


def test_requests_have_arms_with_names() -> None:
    text = model_of("", "walk w(x: i64) { emit x as tensor }", "together { w(x)  two: w(x)  { w(x) } }")
    (together,) = program_of(text).requests[0].body.ops
    assert [arm.label for arm in together.arms] == ["arm_1", "two", "arm_2"]  # type: ignore[union-attr]


def test_a_part_is_narrowed_to_its_case() -> None:
    more = "type p = (v: i64[T])\ntype q = (v: i64[T], u: i64)\nextern cut(x: text) -> list(p | q)\n"
    walks = "walk f(v: i64[T]) { emit v as tensor }\nwalk g(u: i64) { emit u as tensor }\n"
    body = "for part in cut(x) { case p { f(part.v) } case q { f(part.v)  g(part.u) } }"
    program = program_of(more + walks + f"request r(x: text) -> tensor {{ {body} }}\n")
    calls = ops_of(program.requests[0].body, CallWalk)
    assert [print_op(op).strip() for op in calls] == ["call f(%2.v)", "call f(%3.v)", "call g(%3.u)"]
    body = "for part in cut(x) { f(part.v) }"
    program = program_of(more + walks + f"request r(x: text) -> tensor {{ {body} }}\n")
    assert "each %2 part: host list(p | q)" in print_op(program.requests[0].body.ops[-1])


def test_params_have_ranges_and_defaults() -> None:
    text = "param p : enum(a, b) = if wants(image) then a else b\nparam q : float in 0..2.5 = 1\nparam r : bool\n"
    program = program_of(text + in_walk("emit x as tensor", more="let t = p == b and q > 1 and r\n"))
    p, q, r = program.params
    assert (q.low, q.high, q.default) == (Lit(0), Lit(2.5), Lit(1)) and r.default is None
    assert p.default is not None and Ref("member", "a") in (p.default.a, p.default.b)  # type: ignore[union-attr]


def test_samplers_keep_their_settings_in_order() -> None:
    more = CACHE + "param top_p : float = 1.0\nconfig { c = llm.ids }\ncontext main on lm max 9\n"
    more += "sampler t { top_p, repetition_penalty = 1.5 over main, suppress = 3..9 except 5 }\n"
    program = program_of(in_walk("emit x as tensor", more=more))
    sampler = program.samplers[1]
    assert [name for name, _ in sampler.settings] == ["top_p", "repetition_penalty", "suppress"]
    assert sampler.over == "main" and sampler.settings[0][1] == Ref("param", "top_p")
