"""Text to syntax tree: what each form of the language becomes, and where it stands in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from lark import Lark

from mstarc.diagnostics.core import Collector
from mstarc.source import SourceFile, Span
from mstarc.syntax import ast
from mstarc.syntax.machine import machine
from mstarc.syntax.parser import parse_walk

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted([*ROOT.glob("specs/*.walk"), *ROOT.glob("examples/*/*.walk"), *ROOT.glob("tests/passes/models/*.walk")])


def parsed(text: str) -> ast.Model:
    """The model of a text that has no error."""
    report = Collector()
    model = parse_walk(SourceFile("t.walk", text), report)
    assert model is not None and model.complete, [d.message for d in report.findings()]
    assert report.findings() == ()
    return model


def decl(text: str) -> ast.Decl:
    (found,) = parsed("model t\n" + text).decls
    return found


def expr(text: str) -> ast.Expr:
    found = decl(f"let x = {text}")
    assert isinstance(found, ast.Let)
    return found.value


def shape(tree: ast.Expr) -> object:
    """An expression as nested tuples of operators and leaves."""
    match tree:
        case ast.Number(value) | ast.Text(value) | ast.Bool(value):
            return value
        case ast.Path(names):
            return ".".join(name.text for name in names)
        case ast.Unary(op, x):
            return (op, shape(x))
        case ast.Binary(op, a, b):
            return (shape(a), op, shape(b))
        case ast.IfThen(cond, a, b):
            return ("if", shape(cond), shape(a), shape(b))
        case ast.ListOf(items):
            return [shape(item.value) for item in items]
        case ast.Sub(base, indices):
            return (shape(base), [shape(i) if not isinstance(i, ast.Slice) else "slice" for i in indices])
        case ast.Call(callee, args, access):
            named = [(arg.name.text if arg.name else None, shape(arg.value)) for arg in args]
            return (shape(callee), named, [(a.word, [c.text for c in a.contexts]) for a in access])


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_model_parses(path: Path) -> None:
    model = parsed(path.read_text(encoding="utf-8"))
    assert model.name.text == path.stem
    assert any(isinstance(d, ast.Request) for d in model.decls)


def test_there_are_models_to_parse() -> None:
    assert {path.stem for path in SPECS} >= {"ask", "hello", "bagel", "orpheus", "pi05", "qwen3_omni", "vjepa2_ac"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 - 4", ((1, "+", (2, "*", 3)), "-", 4)),
        ("a // 2 % 3", (("a", "//", 2), "%", 3)),
        ("-a + b", (("-", "a"), "+", "b")),
        ("not a and b or c", (((("not", "a"), "and", "b")), "or", "c")),
        ("a + 1 < b and b <= 2.5", (((("a", "+", 1)), "<", "b"), "and", ("b", "<=", 2.5))),
        ("if a then 1 else if b then 2 else 3", ("if", "a", 1, ("if", "b", 2, 3))),
        ("(a + b) * c", (("a", "+", "b"), "*", "c")),
        ("x[1, 2:3][i]", (("x", [1, "slice"]), ["i"])),
        ("part.view.place", "part.view.place"),
        ("1_000 + 1e-3", (1000, "+", 0.001)),
        ('[1, "a", true]', [1, "a", True]),
        ("f(x, y = 2,)", ("f", [(None, "x"), ("y", 2)], [])),
        ("n.step(t) writes said reads sound", ("n.step", [(None, "t")], [("writes", ["said"]), ("reads", ["sound"])])),
        ("n.text(i) writes (a, b) / k", (("n.text", [(None, "i")], [("writes", ["a", "b"])]), "/", "k")),
    ],
)
def test_expressions(text: str, expected: object) -> None:
    assert shape(expr(text)) == expected


def test_a_range_of_whole_numbers_is_not_two_fractions() -> None:
    found = decl("param n : int in 1..8 = 4")
    assert isinstance(found, ast.Param)
    assert [shape(e) for e in (found.low, found.high, found.default) if e] == [1, 8, 4]


def test_an_op_has_attributes_in_order() -> None:
    found = decl(
        """node n : transformer(lm) weights of m {
            op f(x: bf16[N, d]?, h: host i64) -> y: f32[2 * N], z: i64
                { attend full  takes N + 2  positions at h advance 1  cross  batch stack max 8  graph packed 1..4  async off }
            state seen : bool = false
        }"""
    )
    assert isinstance(found, ast.Node) and found.of is not None and found.weights is not None
    assert (found.kind, found.of.text, found.weights.text) == ("transformer", "lm", "m")
    (op,), (state,) = found.ops, found.states
    assert [(p.name.text, p.host) for p in op.params] == [("x", False), ("h", True)]
    assert isinstance(op.params[0].type, ast.NamedType) and op.params[0].type.optional
    assert [(a.word, a.value.text if a.value else "", [clause for clause, _ in a.exprs]) for a in op.attrs] == [
        ("attend", "full", []),
        ("takes", "", ["takes"]),
        ("positions", "at", ["at", "advance"]),
        ("cross", "", []),
        ("batch", "stack", ["max"]),
        ("graph", "packed", ["low", "high"]),
        ("async", "off", []),
    ]
    assert state.name.text == "seen" and shape(state.init) is False


def test_a_stream_has_its_clauses() -> None:
    found = decl(
        "stream s : i64 where item > 3 by fixed(size = 2) at_end pad(zero) after_end empty overlap ok capacity 2 * k"
    )
    assert isinstance(found, ast.Stream) and found.where is not None
    names = (found.policy, found.at_end, found.pad, found.after_end, found.overlap)
    assert [name.text for name in names if name] == ["fixed", "pad", "zero", "empty", "ok"]
    assert shape(found.where) == ("item", ">", 3) and shape(found.capacity) == (2, "*", "k")
    dropped = decl("stream s : i64 by fixed(2) at_end drop capacity 2")
    assert isinstance(dropped, ast.Stream) and dropped.at_end is not None and dropped.at_end.text == "drop"


def test_statements_of_a_walk() -> None:
    found = decl(
        """walk w(x: i64) -> y: i64[K] {
            a, _ = n.f(x) when loud
            loop l max 3 carry a, b = 1 { stop when a == 2  collect a as y  emit a as audio(rate = 24000)  send a -> s }
            parallel { c = n.f(x)  d = n.g(x) }
            for u, v in s, t { n.h(u, v) }
            fork m from k
            drop m, k
        }"""
    )
    assert isinstance(found, ast.Walk)
    guarded, loop, parallel, chunks, fork, drop = found.body.stmts
    assert isinstance(guarded, ast.Guarded) and isinstance(guarded.stmt, ast.Assign)
    assert [name.text for name in guarded.stmt.targets] == ["a", "_"]
    assert isinstance(loop, ast.Loop) and loop.kind == "max"
    assert [(c.name.text, c.init is not None) for c in loop.carries] == [("a", False), ("b", True)]
    assert [type(stmt) for stmt in loop.body.stmts] == [ast.Stop, ast.Collect, ast.Emit, ast.Send]
    assert isinstance(parallel, ast.Parallel) and len(parallel.body.stmts) == 2
    assert isinstance(chunks, ast.For) and [n.text for n in chunks.names] == ["u", "v"] and len(chunks.over) == 2
    assert isinstance(fork, ast.Fork) and (fork.target.text, fork.source.text) == ("m", "k")
    assert isinstance(drop, ast.Drop) and [c.text for c in drop.contexts] == ["m", "k"]


def test_statements_of_a_request() -> None:
    found = decl(
        """request r(parts: list(text | image), n: i64) -> text?, audio {
            require  n >
                     2
            for part in parts { case text { f(part) } case image { } }
            together { one: if n > 3 { f(n) } else { g() }  f(n)  { g()  g() } }
        }"""
    )
    assert isinstance(found, ast.Request)
    assert [(o.modality.text, o.optional) for o in found.outputs] == [("text", True), ("audio", False)]
    require, parts, together = found.body.stmts
    assert isinstance(require, ast.Require) and require.text == "n > 2"
    assert isinstance(parts, ast.For) and [c.kind.text for c in parts.cases] == ["text", "image"]
    assert isinstance(together, ast.Together)
    assert [b.label.text if b.label else None for b in together.branches] == ["one", None, None]
    assert [len(b.body.stmts) for b in together.branches] == [1, 1, 2]


def test_clause_words_stay_names() -> None:
    found = decl("walk w(max: i64, at: i64) { state = n.times(max, at)  from = n.list(state)  emit from as text }")
    assert isinstance(found, ast.Walk)
    assert isinstance(found.body.stmts[0], ast.Assign) and found.body.stmts[0].targets[0].text == "state"


def test_spans_are_bytes_of_the_file() -> None:
    text = 'model t  # größe\nlet größer = 1\nlet a = "é" == b'
    report = Collector()
    model = parse_walk(SourceFile("t.walk", text), report)
    assert model is not None and not model.complete  # names are ASCII
    let = model.decls[-1]
    assert isinstance(let, ast.Let) and isinstance(let.value, ast.Binary)
    data = text.encode()
    for tree, due in ((let.value.b, "b"), (let.value.a, '"é"'), (let, 'let a = "é" == b')):
        assert data[tree.span.start : tree.span.end].decode() == due
    (error,) = report.findings()
    assert data[error.primary.span.start : error.primary.span.end].decode() == "ö"


def test_a_declaration_spans_its_text() -> None:
    text = "model t\n\nnode a : stateless { op f(x: i64) -> y: i64 }\n"
    (node,) = parsed(text).decls
    assert node.span == Span("t.walk", text.index("node"), text.rindex("}") + 1)


def test_the_grammar_has_no_conflict() -> None:
    grammar = (ROOT / "mstarc/syntax/walk.lark").read_text(encoding="utf-8")
    Lark(grammar, start=["header", "decl"], parser="lalr", lexer="contextual")  # raises on a conflict


def test_reserved_words_are_those_of_the_grammar() -> None:
    keywords = {text for text in machine().terminals if text.isidentifier()}
    assert machine().reserved <= keywords
    assert {"walk", "when", "carry", "cross", "true", "in"} <= machine().reserved
    assert not {"state", "text", "chunk", "max", "from"} & machine().reserved
