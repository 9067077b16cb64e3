"""`format_walk`: nothing is lost, nothing changes twice, and the layout is what it says: statements, comments, columns, breaks."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from mstarc.diagnostics.core import Collector
from mstarc.source import SourceFile
from mstarc.syntax import ast
from mstarc.syntax.format import WIDTH, format_model, format_walk
from mstarc.syntax.format_tree import comments_of
from mstarc.syntax.parser import parse_walk
from mstarc.syntax.tokens import tokenize

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted([*ROOT.glob("specs/*.walk"), *ROOT.glob("examples/*/*.walk"), *ROOT.glob("tests/passes/models/*.walk")])
PAGES = [*sorted(ROOT.glob("mstarc/diagnostics/explain/*.md")), ROOT / "specs/README.md"]
BLOCKS = [
    block for page in PAGES for block in re.findall(r"^```walk\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
]
WHOLE = [block for block in BLOCKS if re.match(r"\s*(#.*\n\s*)*model ", block)]


def parsed(text: str) -> ast.Model | None:
    """The model of a text, or None if it has an error of grammar."""
    model = parse_walk(SourceFile("t.walk", text), Collector())
    return model if model is not None and model.complete else None


def shape(node: Any) -> Any:
    """A tree without its places and without the source text that `require` keeps."""
    if isinstance(node, tuple):
        return tuple(map(shape, node))
    if not isinstance(node, Struct):
        return node
    left_out = {"span", "text"} if isinstance(node, ast.Require) else {"span"}
    kept = [name for name in node.__struct_fields__ if name not in left_out]
    return (type(node).__name__, *(shape(getattr(node, name)) for name in kept))


def formatted(text: str, width: int = WIDTH) -> str:
    """The text in layout, after a check of all that must hold of any layout."""
    model = parsed(text)
    assert model is not None
    source = SourceFile("t.walk", text)
    found = format_model(source, model, width)
    result, again = SourceFile("t.walk", found), parsed(found)
    assert again is not None and shape(again) == shape(model)
    assert comments_of(result) == comments_of(source)
    assert format_model(result, again, width) == found
    lines = found.split("\n")
    assert lines[-1] == "" and lines[0] and lines[-2], "no empty line at either end"
    assert all(line == line.rstrip() and "\t" not in line.split("#")[0] for line in lines)
    assert "\n\n\n" not in found
    return found


# ------------------------------------------------------------------------------------------------- of any text


@pytest.mark.parametrize("width", [WIDTH, 40])
@pytest.mark.parametrize("path", SPECS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_specs(path: Path, width: int) -> None:
    found = formatted(path.read_text(encoding="utf-8"), width)
    code = [line.split("#")[0].rstrip() for line in found.split("\n")]
    longest = max(code, key=len)
    assert len(longest) <= (WIDTH if width == WIDTH else 58), longest


def test_every_block_of_the_pages() -> None:
    done = [formatted(block) for block in WHOLE if parsed(block) is not None]
    assert len(done) > 80


@pytest.mark.parametrize("seed", range(6))
def test_other_spaces_breaks_and_comments(seed: int) -> None:
    """20 times: a text whose gaps have become others, comments among them, at some width."""
    draw = random.Random(seed)
    texts = [*(path.read_text(encoding="utf-8") for path in SPECS), *WHOLE]
    done = 0
    for _ in range(20):
        text = respaced(draw.choice(texts), draw)
        if parsed(text) is not None:
            formatted(text, draw.choice((20, 40, 70, WIDTH)))
            done += 1
    assert done > 8


def respaced(text: str, draw: random.Random) -> str:
    """Half of the gaps between words get other spaces, line breaks or comments."""
    data, out, at = text.encode(), "", 0
    for token in tokenize(SourceFile("t.walk", text)):
        gap = data[at : token.start].decode()
        if gap and draw.random() < 0.5:
            pad = " " * draw.choice((1, 1, 2, 3, 5, 9))
            news = (pad, pad, pad, f"\n{pad}", "\n", "\t", "\n\n\n ", f"  # say {pad}\n", "\r\n", f"\n  # own é\n{pad}")
            gap = gap + pad if "#" in gap else draw.choice(news)
        out += gap + token.text
        at = token.end
    return out + data[at:].decode()


def test_spaces_alone_decide_nothing_but_columns() -> None:
    """One space everywhere, or as many as you like: the same words stand on the same lines."""
    draw = random.Random(1)
    for path in (ROOT / "specs/ask.walk", ROOT / "examples/hello/hello.walk"):
        text = path.read_text(encoding="utf-8")
        other = re.sub(
            r"(?m)(?<=\S) +(?=[^\s#])", lambda m: " " * draw.randint(1, 4) if '"' not in m.string else m[0], text
        )
        a, b = ([re.sub(r" +", " ", line).strip() for line in formatted(t).split("\n")] for t in (text, other))
        assert a == b


def test_a_text_with_an_error_is_reported_and_left() -> None:
    report = Collector()
    assert format_walk(SourceFile("t.walk", "model t\nlet x = \nlet y = 3\n"), report) is None
    assert [d.rule.code for d in report.findings()] == ["MC010"]
    assert format_walk(SourceFile("t.walk", ""), Collector()) is None


# ------------------------------------------------------------------------------------------------- the layout


def test_one_statement_a_line() -> None:
    text = "model t walk w(x:i64[T,3],y:text?)->z:i64{a=f(x) b=-x[1:-1]*(3+4) stop  when x==3 drop c,d}"
    assert formatted(text) == (
        "model t\n"
        "walk w(x: i64[T, 3], y: text?) -> z: i64 {\n"
        "    a = f(x)\n"
        "    b = -x[1:-1] * (3 + 4)\n"
        "    stop when x == 3\n"
        "    drop c, d\n"
        "}\n"
    )


def test_a_block_of_one_statement_may_stay_on_its_line() -> None:
    text = "model t\nwalk w(){f()}\nwalk v(){\nf()}\nrequest r()->text?{if a{f()}else{g()}}\n"
    assert formatted(text) == (
        "model t\nwalk w() { f() }\nwalk v() {\n    f()\n}\nrequest r() -> text? { if a { f() } else { g() } }\n"
    )
    two = formatted("model t\nrequest r() -> text { if a { f() g() } else { h() } }")
    assert two == ("model t\nrequest r() -> text {\n    if a {\n        f()\n        g()\n    } else { h() }\n}\n"), (
        "what holds a block on several lines is on several lines"
    )
    assert formatted("model t walk w() { }") == "model t\nwalk w() {}\n"


def test_lists_of_entries_ops_and_branches_may_share_a_line() -> None:
    text = "model t\nconfig{a=x.y b=3}\nnode n:stateless{op f() op g()->y:i64{batch   stack max 3 random}}\n"
    assert formatted(text) == (
        "model t\nconfig { a = x.y  b = 3 }\n"
        "node n : stateless { op f()  op g() -> y: i64  { batch stack max 3  random } }\n"
    )
    rows = "model t\nconfig { a = x.y bb = 3\n cc = 4 d = 5 }\n"
    assert formatted(rows) == "model t\nconfig {\n    a = x.y  bb = 3\n    cc = 4  d = 5\n}\n"
    arms = "model t\nrequest r() -> text { together { a: f() b: { g() } } }\n"
    assert formatted(arms) == "model t\nrequest r() -> text { together { a: f()  b: { g() } } }\n"


def test_comments_stay_where_they_belong() -> None:
    text = (
        "\n\n# top\n\n\nmodel t   # of the model\n#of w\nwalk w() {   # of the block\n# first\n f(x,   # of x\n   # of y\n y)\n\n\n"
        "      # last\n}\n# end\n\n\n# of all"
    )
    assert formatted(text) == (
        "# top\n\nmodel t  # of the model\n#of w\nwalk w() {  # of the block\n    # first\n    f(x,  # of x\n"
        "      # of y\n      y)\n\n    # last\n}\n# end\n\n# of all\n"
    )


def test_comments_in_one_column_keep_it_and_draw_others_to_it() -> None:
    column = " " * 12
    text = (
        f"model t{column}     # one\n\nlet a = 1{column}   # two\nlet b = 2     # three\n"
        f"let long_name_of_a_thing = 3 # four\nlet c = 4  # five\n{column * 2}# six\n"
    )
    want = [24, 24, 24, 30, 24, 0]
    found = formatted(text)
    assert [line.index("#") for line in found.split("\n") if "#" in line] == want
    going_on = "model t  # one\n         # goes on\n\n         # does not\n"
    assert formatted(going_on) == "model t  # one\n         # goes on\n\n# does not\n"


def test_stray_spaces_go_and_columns_stay() -> None:
    stray = "model t\nlet   a   =   1\nlet  bbb =    2\n"
    assert formatted(stray) == "model t\nlet a = 1\nlet bbb = 2\n"
    columns = "model t\nlet a   = 1\nlet bbb = 2\nlet c   = 3\n"
    assert formatted(columns) == columns
    wider = columns.replace(" =", "   =")
    assert formatted(wider) == wider, "the author's column stands, though it need not be so far"


def test_a_line_that_left_its_column_comes_back() -> None:
    text = "model t\nparam a : int = 1\nparam bb   : int = 2\nparam c    : int = 3\nparam dddd : int = 4\n"
    assert (
        formatted(text)
        == "model t\nparam a    : int = 1\nparam bb   : int = 2\nparam c    : int = 3\nparam dddd : int = 4\n"
    )
    longer = text.replace("dddd", "d_is_longer")
    assert {line.index(":") for line in formatted(longer).split("\n") if ":" in line} == {18}


def test_columns_across_kinds_and_depths() -> None:
    text = (
        "model t\ncache   lm    : kv(layers = 3)\ncontext main  on lm  max 2\ncontext other on ear max 3\n"
        "walk w() {\n    emit a as tensor         when x\n    loop l max 3 {\n        emit b as scalar     when y\n    }\n}\n"
    )
    assert formatted(text) == text


def test_a_column_that_makes_a_line_too_long_is_not_taken() -> None:
    text = (
        "model t\nnode n : stateless {\n    op f(x: i64)          { batch stack }\n    op gg(x: i64)         { batch stack }\n"
        "    op h(x: i64)          { batch stack max 100_000  random }\n}\n"
    )
    assert formatted(text, 70) == text
    narrow = formatted(text, 60).split("\n")
    assert [line.index("{") for line in narrow[2:5]] == [26, 26, 18]


def test_long_lines_break_at_clauses_then_commas() -> None:
    text = "model t\nextern layout(messages: list(text | audio)) -> prefix: list(text_part | audio_part), tail: text_part\n"
    assert formatted(text, 70) == (
        "model t\nextern layout(messages: list(text | audio))\n    -> prefix: list(text_part | audio_part), tail: text_part\n"
    )
    call = (
        "model t\nwalk w() { first, second = some.oper(argument_one, argument_two + 3, argument_three) writes main }\n"
    )
    assert formatted(call, 50) == (
        "model t\nwalk w() {\n    first, second = some.oper(argument_one,\n"
        "        argument_two + 3, argument_three)\n        writes main\n}\n"
    ), "there is no room under the bracket"
    assert "oper(argument_one, argument_two + 3,\n                              argument_three)" in formatted(call, 72)
    header = "model t\nwalk w(argument: i64[T], other: i64[T]) -> result: f32[T] { f() g() }\n"
    assert formatted(header, 50) == (
        "model t\nwalk w(argument: i64[T], other: i64[T])\n        -> result: f32[T] {\n    f()\n    g()\n}\n"
    )
    stream = "model t\nstream s : i64 where item >= 3 by fixed(size = 3) at_end pad(zero) capacity 100\n"
    assert formatted(stream, 60) == (
        "model t\nstream s : i64  where item >= 3\n    by fixed(size = 3)  at_end pad(zero)  capacity 100\n"
    )


def test_an_allowed_finding_stays_on_its_line() -> None:
    code = "first, second = some.oper(argument_one, argument_two + 3, argument_three)"
    above = f"model t\nwalk w() {{\n    # mstarc: allow MC006 -- because\n    {code}\n    {code}  # mstarc: allow MC006 -- so\n}}\n"
    assert formatted(above, 40) == above
    assert formatted(above.replace("allow", "allows"), 40) != above.replace("allow", "allows")


CANONICAL = """
let x = if a then b else c
let y = not (a or b) and c
let z = max(1, 2) - -3 // [4, 5][0]
let u = times[1] + max
let v = f(a,)
let w = "a  b # c"

sampler s { temperature, suppress = n - 2..n - 1 except e, top_p = 0.5 over main }

extern f(x: text) -> text

type part = (x: list(a | b)?, y: enum(c, d), z: host i64[3, N // 2])

node n : transformer(lm) weights of m {
    state s: i64[3] = zero
    op f()  { attend full  takes (a + b)  positions at p advance q }
}

walk w() {
    loop l max (a + b) * 2 carry x, y = 3 { f(x) }
    for a, b in c, d { g() }
    parallel { h() writes (c, d) reads e }
}

request r(x: text?) -> text, audio? {
    require x == 3 and y
    for part in x {
        case a { f() }
        case b { g() }
    }
}
"""


@pytest.mark.parametrize("text", CANONICAL.strip().split("\n\n"))
def test_what_is_canonical_stays(text: str) -> None:
    assert formatted(f"model t\n{text}\n") == f"model t\n{text}\n"
