"""What lowering refuses: for each rule the code and the text that the finding stands on, and one finding a mistake."""

from __future__ import annotations

import pytest

from tests.passes.lowered import CACHE, NODES, in_walk, lowered, only, said

ONE = CACHE + "context main on lm max 9\n"
TWO = CACHE + "context main, side on lm max 9\ncontext far on ear max 9\n"
READ = "token = sample(s, llm.read(ids)) emit token as text"

WALKS: list[tuple[str, str, str]] = [
    # ------------------------------------------------------------------------------------------------------------- names
    ("emit b.f(x) as tensor", "MC002", "b"),
    ("emit a.ff(x) as tensor", "MC002", "ff"),
    ("emit a.f(xx) as tensor", "MC002", "xx"),
    ("emit a.f(z = x) as tensor", "MC002", "z"),
    ("emit a.f(x) as tensr", "MC002", "tensr"),
    ("send a.f(x) -> nowhere", "MC002", "nowhere"),
    ("drop nowhere", "MC002", "nowhere"),
    ("emit f(x) as tensor", "MC002", "f"),
    ("w(x)", "MC002", "w"),
    ("emit sample(nobody, a.make(x)) as tensor", "MC002", "nobody"),
    ("emit iter as tensor", "MC002", "iter"),
    ("emit a as tensor", "MC002", "a"),
    ("y = noise(f23[4])  emit y as tensor", "MC002", "f23"),
    ("y = x.ids  emit y as tensor", "MC002", "ids"),
    ("emit given(picture) as tensor", "MC002", "picture"),
    ("min = a.f(x)  emit min as tensor", "MC001", "min"),
    ("p = a.f(x)  emit p as tensor", "MC001", "p"),
    ("loop l times 2 { loop l times 2 { emit a.g(x, iter) as tensor } }", "MC001", "l"),
    ("y = a.f(x)  y = a.f(y)  emit y as tensor", "MC003", "y"),
    ("y, y = a.two(x)  emit y as tensor", "MC003", "y"),
    ("y = a.f(x)  loop l times 2 { y = a.g(y, iter)  emit y as tensor }", "MC003", "y"),
    ("loop l times 2 carry x { x = a.f(x)  x = a.f(x) }  emit x as tensor", "MC003", "x"),
    ("loop l times 2 carry x, x { x = a.f(x) }  emit x as tensor", "MC003", "x"),
    ("y = a.f(x)  emit y as tensor  loop l times 2 carry y = 3 { y = a.f(y) }", "MC003", "y"),
    ("v = a.f(x)  emit guide(v, [v, x], 1.5) as tensor", "MC007", "v"),
    ("v = a.f(x)  emit guide(v, [1, 2], 1.5) as tensor", "MC007", "[1, 2]"),
    ("v = a.f(x)  emit guide(v, x, [1.5, 2.5]) as tensor", "MC007", "[1.5, 2.5]"),
    ("v = a.f(x)  emit [v, 2] as tensor", "MC007", "v"),
    ("y = a.f(x)  emit x as tensor", "MC006", "y"),
    ("y = x + 1  emit x as tensor", "MC006", "y"),
    ("y = a.f(x) when p == 1  emit x as tensor", "MC006", "y"),
    ("loop l times 2 carry x { x = a.f(x)  collect x as ys }  emit x as tensor", "MC006", "ys"),
    ("a.f(x)  emit x as tensor", "MC006", "a.f(x)"),
    ("len(x)  emit x as tensor", "MC007", "len(x)"),
    ("z = a.f(y)  y = a.f(x)  emit z as tensor", "MC005", "y"),
    ("y = a.f(y)  emit y as tensor", "MC005", "y"),
    ("loop l times 2 { emit a.g(y, iter) as tensor }  y = a.f(x)  emit y as tensor", "MC005", "y"),
    ("parallel { z = a.f(y)  y = a.f(x) }  emit a.g(y, z) as tensor", "MC005", "y"),
    # ------------------------------------------------------------------------------------------------------------- arity
    ("emit a.g(x) as tensor", "MC004", "a.g(x)"),
    ("emit a.f(x, x) as tensor", "MC004", "a.f(x, x)"),
    ("emit a.f(x, x = x) as tensor", "MC004", "x = x"),
    ("y, z = a.f(x)  emit a.g(y, z) as tensor", "MC004", "a.f(x)"),
    ("emit a.two(x) as tensor", "MC004", "a.two(x)"),
    ("y = a.none(x)  emit y as tensor", "MC004", "a.none(x)"),
    ("y, z = x + 1  emit a.g(y, z) as tensor", "MC004", "x + 1"),
    ("emit len(x, x) as tensor", "MC004", "len(x, x)"),
    ("emit sample(a.make(x)) as tensor", "MC004", "sample(a.make(x))"),
    ("emit next() as tensor", "MC004", "next()"),
    ("y = noise(3)  emit y as tensor", "MC004", "noise(3)"),
    ("emit x as audio(24000)", "MC004", "24000"),
    ("emit x as audio(rte = 24000)", "MC013", "rte"),
    ("emit x as tensor(rate = 24000)", "MC013", "rate"),
    # ------------------------------------------------------------------------------------------------------------- types
    ("emit a.rows(x) as tensor", "MC007", "x"),
    ("emit a.rows(a.make(x)) as tensor", "MC007", "a.make(x)"),
    ("emit a.four(noise(f32[5])) as tensor", "MC007", "noise(f32[5])"),
    ("emit a.split(noise(f32[5])) as tensor", "MC007", "noise(f32[5])"),
    ("emit a.pair(noise(f32[5]), noise(f32[6])) as tensor", "MC007", "noise(f32[6])"),
    ("emit noise(f32[5]) + noise(f32[6]) as tensor", "MC007", "noise(f32[5]) + noise(f32[6])"),
    ("emit x and true as tensor", "MC007", "x and true"),
    ("emit not x as tensor", "MC007", "not x"),
    ('emit x + "one" as tensor', "MC007", 'x + "one"'),
    ("emit 1 < 2 < 3 as tensor", "MC007", "1 < 2 < 3"),
    ("emit x[0] as tensor", "MC007", "x[0]"),
    ("emit a.make(x)[0, 1] as tensor", "MC007", "a.make(x)[0, 1]"),
    ("emit a.make(x)[1.5] as tensor", "MC007", "1.5"),
    ("emit a.make(x)[0 : p / 2] as tensor", "MC007", "p / 2"),
    ("emit a.f(x) as tensor when 3", "MC007", "3"),
    ("loop l times 1.5 carry x { x = a.f(x) }  emit x as tensor", "MC007", "1.5"),
    ("emit a.f(1.5) as tensor", "MC007", "1.5"),
    ("emit if true then 1 else true as tensor", "MC303", "if true then 1 else true"),
    # ------------------------------------------------------------------------------------------------------------- loops
    ("loop l times 2 carry y { y = a.f(x) }  emit y as tensor", "MC202", "y"),
    ("loop l times 2 carry x { emit a.f(x) as tensor }", "MC202", "x"),
    ("loop l times 2 carry x { x = a.f(x) when p == 1 }  emit x as tensor", "MC202", "x"),
    ("loop l times 2 carry y = noise(f32[4]) { y = a.make(x)[0] }  emit y as tensor", "MC203", "y"),
    ("loop l times 2 carry y = 1 { y = a.make(x) }  emit y as tensor", "MC203", "y"),
    ("loop l times 2 carry y = noise(f32[4]) { y = noise(f32[5]) }  emit y as tensor", "MC203", "y"),
    ('loop l times 2 carry y = "a" { y = a.f(x) }  emit y as tensor', "MC203", '"a"'),
    ("loop l max 2 carry x { stop when x  x = a.f(x) }  emit x as tensor", "MC205", "x"),
    ("stop when x == 1", "MC205", "stop when x == 1"),
    ("loop l max 2 carry x { stop when done  x = a.f(x) }  emit x as tensor", "MC205", "done"),
    ("loop l max 2 carry x { stop when x == 1 and p == ende  x = a.f(x) }  emit x as tensor", "MC205", "ende"),
    ("y = if p == 1 then next(ones) else 2  emit y as tensor", "MC303", "next(ones)"),
    ("loop l max 2 carry x { stop when a.make(x) > 0  x = a.f(x) }  emit x as tensor", "MC205", "a.make(x) > 0"),
    ("loop l times 2 carry x { x = a.f(x)  y = a.f(x)  emit y as tensor }  emit y as tensor", "MC206", "y"),
    ("collect x as xs", "MC206", "collect x as xs"),
    ("loop l times 2 carry x { x = a.f(x)  collect x as x }  emit x as tensor", "MC206", "x"),
    (
        "loop l times 2 carry x { x = a.f(x)  collect x as y  collect noise(f32[3]) as y }  emit y as tensor",
        "MC007",
        "noise(f32[3])",
    ),
    # -------------------------------------------------------------------------------------------------- branches and phases
    ("y = a.f(x) when p == 1  emit a.f(y) as tensor", "MC301", "y"),
    ("y = a.f(x) when p == 1  emit y as tensor", "MC301", "y"),
    ("y = a.f(x) when p == 1  emit y + 1 as tensor", "MC301", "y"),
    ("parallel { y = a.f(x)  y = a.g(x, x) }  emit y as tensor", "MC302", "y"),
    ("parallel { y = a.f(z)  z = a.f(y) }  emit y as tensor", "MC101", "z"),
    ("y = a.f(x)  emit y as tensor when y == 0", "MC305", "y == 0"),
    ("y = a.f(x)  loop l times y carry x { x = a.f(x) }  emit x as tensor", "MC305", "y"),
    ("emit a.at(x, a.f(x)) as tensor", "MC305", "a.f(x)"),
    ("y = a.f(x)  emit a.make(x)[y] as tensor", "MC305", "y"),
    ("y = a.f(x)  emit if y == 1 then x else y as tensor", "MC305", "y == 1"),
    # -------------------------------------------------------------------------------------------------- words in wrong places
    ("if p == 1 { }", "MC010", "if"),
    ("together { a.none(x) }", "MC010", "together"),
    ("require p == 1", "MC010", "require"),
    ("for part in ones { case p { } }", "MC010", "for"),
    ("for u, v in ones { emit u as tensor }", "MC004", "for u, v in ones { emit u as tensor }"),
    ("for u in x { emit u as tensor }", "MC002", "x"),
    ("emit a.f(x) writes main as tensor", "MC002", "main"),
    ("emit len(noise(f32[3])) writes main as tensor", "MC507", "writes main"),
]


@pytest.mark.parametrize(("body", "code", "under"), WALKS)
def test_in_a_walk(body: str, code: str, under: str) -> None:
    more = "param p : int in 1..3 = 1\nstream ones : i64 by fixed(1) capacity 4\n"
    assert said(in_walk(body, more=more)) == [(code, under)]


@pytest.mark.parametrize(
    ("body", "more", "code", "under"),
    [
        (f"{READ}", TWO, "MC004", "llm.read(ids)"),
        (f"{READ.replace('(ids))', '(ids) writes main, side)')}", TWO, "MC004", "sample(s, llm.read(ids) writes main, side)"),
        (f"{READ.replace('(ids))', '(ids) writes main writes side)')}", TWO, "MC004", "writes side"),
        (f"{READ.replace('(ids))', '(ids) writes s)')}", ONE, "MC002", "s"),
        (f"{READ}  y = if len(ids) > 1 then sample(s, noise(f32[9])) else 2  emit y as text", ONE, "MC303",
         "sample(s, noise(f32[9]))"),
        ("y = if len(ids) > 1 then llm.read(ids) else noise(f32[9])  emit y as tensor", ONE, "MC303", "llm.read(ids)"),
        (f"{READ}  y = if len(ids) > 1 then (if len(ids) > 2 then kept.at(1) else 2) else 2  emit y as text",
         ONE + "node kept : stateless { state n: i64 = 0  op at(x: i64) -> y: i64 }\n", "MC303", "kept.at(1)"),
        (f"{READ.replace('(ids))', '(ids) reads main)')}", ONE, "MC506", "reads main"),
        ("emit llm.hear(1) as tensor  llm.read(ids)", ONE, "MC004", "llm.hear(1)"),
        ("emit llm.look(noise(f32[2, 4])) reads (main, side) as tensor  llm.read(ids) writes main", TWO, "MC004",
         "llm.look(noise(f32[2, 4])) reads (main, side)"),
        ("emit a.f(1) reads main as tensor  llm.read(ids)", ONE, "MC506", "reads main"),
        ("emit sample(s, ids) as tensor", ONE, "MC007", "ids"),
        ("v = llm.look(noise(f32[2, 4])) reads side  emit v as tensor  llm.read(ids) writes main",
         ONE + "param q : bool = true\ncontext side on lm max 9 when q\n", "MC301", "v"),
    ],
)  # fmt: skip
def test_contexts_and_samplers(body: str, more: str, code: str, under: str) -> None:
    assert said(in_walk(body, params="ids: i64[T]", args="ids", more=more)) == [(code, under)]


def test_the_trap_of_a_context_list_without_parentheses() -> None:
    text = READ.replace("(ids))", "(ids) writes main, side)")
    found = only(in_walk(text, params="ids: i64[T]", args="ids", more=TWO))
    assert found.help == "several contexts stand in parentheses: `writes (a, b)`"


REQUESTS: list[tuple[str, str, str]] = [
    ("v(x)", "MC002", "v"),
    ("a.f(x)", "MC002", "a.f"),
    ("sample(x, x)", "MC002", "sample"),
    ("w(x, x)", "MC004", "w(x, x)"),
    ("w(t)", "MC007", "t"),
    ("w(x) when t", "MC007", "t"),
    ("if x { w(x) }", "MC007", "x"),
    ("y = give(x)  if y == 1 { w(x) }", "MC305", "y == 1"),
    ("if x == 1 { y = give(x)  w(y) }  w(y)", "MC301", "y"),
    ("y = give(x) when x == 1  w(y)", "MC301", "y"),
    ("w(y)  y = give(x)", "MC005", "y"),
    ("emit x as tensor", "MC010", "emit"),
    ("loop l times 3 { w(x) }", "MC010", "loop"),
    ("require x", "MC007", "x"),
    ("together { one: w(x)  one: w(x) }", "MC001", "one"),
    ("for part in x { w(part) }", "MC007", "x"),
    ("for part in cut(t) { case p { w(part.v) } }", "MC304", "part in cut(t)"),
    ("for part in cut(t) { case p { w(part.v) } case q { } case p { } }", "MC304", "p"),
    ("for part in cut(t) { case p { w(part.v) } case q { } case pp { } }", "MC002", "pp"),
    ("for part in cut(t) { case p { w(part.u) } case q { w(part.u) } }", "MC002", "u"),
    ("for part in cut(t) { w(part.u) }", "MC002", "u"),
    ("for part in cut(t) { w(part.v) }", "MC007", "v"),
    ("for p1, p2 in cut(t) { w(x) }", "MC004", "p1, p2 in cut(t)"),
    ("y = give(x)  w(x)", "MC006", "y"),
    ("w(noise(f32[3]))", "MC002", "noise"),
    ("w(rows(x))", "MC007", "rows(x)"),
]


@pytest.mark.parametrize(("body", "code", "under"), REQUESTS)
def test_in_a_request(body: str, code: str, under: str) -> None:
    text = (
        NODES
        + "type p = (v: i64)\ntype q = (v: i64[T], u: i64)\nextern cut(x: text) -> list(p | q)\nextern rows(x: int) -> f32[N]\n"
        + "walk w(x: i64) { emit x as tensor }\nwalk give(x: i64) -> y: i64 { y = a.f(x) }\n"
        + f"request r(x: i64, t: text) -> tensor {{ {body} }}\n"
    )
    assert said(text) == [(code, under)]


DECLARATIONS: list[tuple[str, str, str]] = [
    ("node a : stateless { op h(x: i64) -> y: i64 }", "MC001", "a"),
    ("param p : int = 1\nsampler p { temperature = 0 }", "MC001", "p"),
    ("param len : int = 1", "MC001", "len"),
    ("node b : stateless { op f(x: i64) -> y: i64 op f(x: i64) -> y: i64 }", "MC001", "f"),
    ("node b : stateless { op f(x: i64, x: i64) -> y: i64 }", "MC001", "x"),
    ("type p = (v: i64, v: i64)", "MC001", "v"),
    ("param p : enum(a, b, a) = a", "MC001", "a"),
    ("param p : int = q", "MC002", "q"),
    ("param p : enum(on, off) = of", "MC002", "of"),
    ("param p : i32 = 1", "MC007", "i32"),
    ("param p : bool = 1", "MC007", "1"),
    ("param p : int = 1.5", "MC007", "1.5"),
    ("param p : bool in 0..1 = true", "MC007", "0..1"),
    ("param p : int = q\nparam q : int = p", "MC101", "p"),
    ("let p = q\nlet q = r\nlet r = p + 1", "MC101", "p"),
    ("config { p = p }", "MC101", "p"),
    ("let p, q = 1", "MC004", "q"),
    ("let p = f(1)", "MC010", "f(1)"),
    ("type p = (q: p)", "MC101", "p"),
    ("type p = (q: nope)", "MC002", "nope"),
    ("type p = (q: host i64)", "MC010", "q: host i64"),
    ("extern e(x: list(nope)) -> int", "MC002", "nope"),
    ("extern e(x: i46[3]) -> int", "MC002", "i46"),
    ("extern e(x: f32[0.5]) -> int", "MC007", "0.5"),
    ("cache c : vk(layers = 1, heads = 1, kv_heads = 1, head_dim = 8)", "MC002", "vk"),
    ("cache c : kv(layers = 1, heads = 1, kv_heads = 1)", "MC013", "c"),
    ("cache c : kv(layers = 1, heads = 1, kv_head = 1, head_dim = 8)", "MC013", "kv_head"),
    ("context c on nowhere", "MC002", "nowhere"),
    ("context c on lm max 3 when 4", "MC007", "4"),
    ("sampler t { temprature = 1 }", "MC013", "temprature"),
    ("sampler t { temperature = 1, temperature = 2 }", "MC013", "temperature = 2"),
    ("sampler t { temperature = 0..1 }", "MC013", "temperature = 0..1"),
    ("sampler t { temperature }", "MC002", "temperature"),
    ("sampler t { temperature = 1 over main }", "MC013", "main"),
    ("sampler t { repetition_penalty = 1 over nowhere }", "MC002", "nowhere"),
    ("sampler t { suppress = 3 except 4 }", "MC013", "4"),
    ("node b : transformer(nowhere) { op f(x: i64) { attend full } }", "MC002", "nowhere"),
    ("node b : stateless(fp23) { op f(x: i64) -> y: i64 }", "MC013", "fp23"),
    ("node b : stateless weights of nowhere { op f(x: i64) -> y: i64 }", "MC002", "nowhere"),
    ("node b : stateless weights of b { op f(x: i64) -> y: i64 }", "MC101", "b"),
    ("node b : stateless { op f(x: i64) -> y: i64 { takes 3 } }", "MC013", "takes 3"),
    ("node b : stateless { op f(x: i64) -> y: i64 { random random } }", "MC013", "random"),
    ("node b : stateless { op f(x: i64) -> y: i64 { async of } }", "MC013", "of"),
    ("node b : stateless { op f(x: i64) -> y: i64 { samples nobody } }", "MC002", "nobody"),
    ("node b : stateless { op f(x: i64, n: i64) -> y: f32[n] }", "MC305", "n"),
    ("node b : stateless { op f(x: f32[n], n: i64) -> y: f32[n] }", "MC305", "n"),
    ("node b : transformer(lm) { op f(x: i64) { attend ful } }", "MC013", "ful"),
    ("node b : transformer(lm) { op f(x: i64) { positions seq } }", "MC013", "f"),
    ("node b : transformer(lm) { op f(x: f32[n]) { attend full } }", "MC013", "f"),
    ("node b : transformer(lm) { op f(x: i64[n], y: i64[m]) { attend full } }", "MC013", "f"),
    ("node b : transformer(lm) { op f(x: i64[16]) { attend full } }", "MC013", "f"),
    ("node b : transformer(lm) { op f(x: i64, p: host i64) { attend full positions at p } }", "MC013", "f"),
    ("sampler z { top_k = 4.5 }", "MC007", "4.5"),
    ("sampler z { min_tokens = 0.5, ends = 3 }", "MC007", "0.5"),
    ("param mood : enum(a, b) = a\nsampler z { suppress = mood }", "MC007", "mood"),
    ("sampler z { suppress = 0.5 }", "MC007", "0.5"),
    ("node b : transformer(lm) { op f(x: i64) { attend full  positions seq  frozen  advance 1 } }", "MC010", "advance"),
    ("node b : stateless { state n: i64 = 0.5  op f(x: i64) -> y: i64 }", "MC007", "0.5"),
    ("node b : stateless { state n: bool = 1  op f(x: i64) -> y: i64 }", "MC007", "1"),
    ("node b : stateless { state n: f32[2] = true  op f(x: i64) -> y: i64 }", "MC007", "true"),
    ("stream t : i64 by fixd(2) capacity 2", "MC013", "fixd"),
    ("stream t : i64 by fixed() capacity 2", "MC013", "fixed"),
    ("stream t : i64 by fixed(2, 3) capacity 2", "MC013", "3"),
    ("stream t : i64 by fixed(size = 2, size = 3) capacity 2", "MC013", "size = 3"),
    ("stream t : i64 by fixed(2) at_end droop capacity 2", "MC013", "droop"),
    ("stream t : i64 by fixed(2) at_end pad(one) capacity 2", "MC013", "pad"),
    ("stream t : i64 by fixed(2) after_end full capacity 2", "MC013", "full"),
    ("stream t : i64 by fixed(2) overlap no capacity 2", "MC013", "no"),
    ("stream t : i64 where item + 1 by fixed(2) capacity 2", "MC007", "item + 1"),
    ("stream t : text by fixed(2) capacity 2", "MC007", "text"),
    ("stream t : i64 by phrase(nope, max = 3) capacity 4", "MC002", "nope"),
    ("extern cut(x: i64) -> cut: bool\nstream t : i64 by phrase(cut, max = 3) capacity 4", "MC007", "cut"),
    ("walk v(x: i64) -> y: i64 { emit x as tensor }", "MC002", "y"),
    ("walk v(x: i64) -> y: f32 { y = a.f(x) }", "MC007", "y: f32"),
    ("walk v(x: f32[n]) -> y: f32[n] { y = noise(f32[3]) emit x as tensor }", "MC007", "y: f32[n]"),
    (
        "walk v(x: i64) -> y: i64 { loop l times 2 carry x { x = a.f(x) y = a.f(x) emit y as text } emit x as tensor }",
        "MC206",
        "y",
    ),
    ("walk v(x: i64) -> y: i64 { y = a.f(x) when true }", "MC301", "y: i64"),
    ("walk v(n: i64, x: f32[n]) { emit x as tensor }", "MC001", "n"),
    ("request q(x: i64) -> sound { w(x) }", "MC002", "sound"),
    ("request q(x: i64) -> tensor, tensor { w(x) }", "MC001", "tensor"),
    ("request r(x: i64) -> tensor { w(x) }", "MC001", "r"),
]


@pytest.mark.parametrize(("text", "code", "under"), DECLARATIONS)
def test_in_a_declaration(text: str, code: str, under: str) -> None:
    assert said(in_walk("emit x as tensor", more=ONE + "\n") + text + "\n") == [(code, under)]


def test_a_state_begins_with_a_number_of_its_kind() -> None:
    text = "node b : stateless { state n: f32[2] = 1  state m: i64 = 2 + 1  state f: bool = true  op f(x: i64) -> y: i64 }\n"
    assert said(in_walk("emit x as tensor") + text) == []


def test_a_dim_may_be_a_host_parameter() -> None:
    text = "node b : stateless { op f(x: f32[n], n: host i64) -> y: f32[n] }\n"
    assert said(in_walk("emit x as tensor") + text) == []


@pytest.mark.parametrize(
    ("text", "help_text"),
    [
        ("emit aa.f(x) as tensor", "did you mean `a`?"),
        ("emit a.roows(x) as tensor", "did you mean `rows`?"),
        ("yes = a.f(x)  emit yse as tensor", "did you mean `yes`?"),
        ("emit x as tensr", "did you mean `tensor`?"),
        ("emit x as pixels", "there are `text`, `image`, `audio`, `video`, `action`, `scalar`, `tensor`"),
        ("emit zebra as tensor", None),
    ],
)
def test_the_nearest_name_is_offered(text: str, help_text: str | None) -> None:
    _, found, _ = lowered(in_walk(text))
    assert [d.help for d in found if d.rule.code == "MC002"] == [help_text]


def test_a_name_of_another_walk_is_told_with_the_way_it_passes() -> None:
    text = in_walk("emit y as tensor  emit k as tensor") + (
        "walk v(x: i64) { loop l times 2 carry x { y = a.f(x)  x = a.f(y) } emit x as tensor }\n"
        "request q(k: i64) -> tensor { v(k) }\n"
    )
    _, found, whole = lowered(text)
    told = {d.subject: d for d in found if d.rule.code == "MC002"}
    assert "values pass between walks as results and params: `walk v(…) -> y: TYPE`" in (told["y"].help or "")
    assert "from a request to its walks as params: hand `k` to the walk" in (told["k"].help or "")
    for name, owner in (("y", "walk `v`"), ("k", "request `q`")):
        (label,) = told[name].secondary
        assert label.text == f"this `{name}` is of {owner}"
        assert whole.encode()[label.span.start : label.span.end].decode() == name
        assert label.span.start > told[name].primary.span.end


def test_an_unknown_flag_of_a_stop_says_the_same() -> None:
    text = in_walk("loop l max 2 carry x { stop when ended  x = a.f(x) }  emit x as tensor") + (
        "walk v(x: i64) { ended = a.is(x)  emit ended as tensor }\nrequest q(x: i64) -> tensor { v(x) }\n"
    )
    _, found, _ = lowered(text)
    (stop,) = (d for d in found if d.rule.code == "MC205")
    assert stop.message == "`stop when` tests `ended`, and nothing here binds that"
    assert "`walk v(…) -> ended: TYPE`" in (stop.help or "") and not [d for d in found if d.rule.code == "MC002"]
    _, found, _ = lowered(
        in_walk("done = a.is(x)  loop l max 2 carry x { stop when doen  x = a.f(x) }  emit x as tensor")
    )
    assert [d.help for d in found if d.rule.code == "MC205"] == ["did you mean `done`?"]


def test_both_sides_of_a_mismatch_are_shown() -> None:
    found = only(in_walk("emit a.pair(y, z) as tensor", params="y: f32[n], z: f32[m]", args="y, z"))
    assert found.message == "`y` of `a.pair` is f32[n], the argument is f32[m]"
    found = only(
        in_walk(
            "loop l times 2 carry y { y = a.pair(z, z) }  emit y as tensor", params="y: f32[3], z: f32[4]", args="y, z"
        )
    )
    assert found.message == "`y` enters loop `l` as f32[3] and leaves its body as f32[4]"


def test_two_declared_dims_are_two_lengths() -> None:
    text = "emit a.pair(y, z) as tensor"
    assert said(in_walk(text, params="y: f32[n], z: f32[n]", args="y, z")) == []
    assert said(in_walk(text, params="y: f32[n], z: f32[3]", args="y, z")) == [("MC007", "z")]
    assert said(in_walk(text, params="y: f32[d], z: f32[3]", args="y, z", more="config { d = a.d }\n")) == []
    assert said(in_walk(text, params="y: f32[d], z: f32[3]", args="y, z", more="config { d = 4 }\n")) == [
        ("MC007", "z")
    ]
    both = "config { d = a.d  e = a.e }\n"
    assert said(in_walk(text, params="y: f32[d], z: f32[e]", args="y, z", more=both)) == [("MC007", "z")]
    assert said(in_walk(text, params="y: f32[2 * d + d], z: f32[3 * d]", args="y, z", more=both)) == []


def test_a_length_that_is_learnt_once_holds_for_the_whole_walk() -> None:
    body = "y = a.make(x)  emit a.pair(y, noise(f32[3])) as tensor  emit a.pair(y, noise(f32[4])) as tensor"
    assert said(in_walk(body)) == [("MC007", "noise(f32[4])")]
    body = (
        "y = a.make(x)  z = a.make(x)  emit a.pair(y, noise(f32[3])) as tensor  emit a.pair(z, noise(f32[4])) as tensor"
    )
    assert said(in_walk(body)) == []


def test_nothing_follows_from_one_mistake() -> None:
    body = "y = a.nope(x)  z = y + 1  loop l max 3 carry y { stop when y  y = a.f(y) }  emit y + z as tensor"
    assert said(in_walk(body)) == [("MC002", "nope")]


def test_what_did_not_parse_is_not_missed_elsewhere() -> None:
    text = in_walk("emit b.f(x) as tensor") + "node b : stateless { op f(x: i64 -> y: i64 }\n"
    assert [code for code, _ in said(text)] == ["MC010"]
    text = in_walk("emit a.nope(x) as tensor") + "node b : stateless { op f(x: i64 -> y: i64 }\n"
    assert [code for code, _ in said(text)] == ["MC002", "MC010"]
