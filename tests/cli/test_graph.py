"""`mstarc graph`: three pictures of one model, each complete, and the page draws nothing over anything else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from mstarc.graph import Picture, picture, to_dot, to_mermaid
from mstarc.graph_svg import to_html
from mstarc.ir.core import Program
from mstarc.ir.text import parse_program
from mstarc.workspace import load_model
from tests.cli.conftest import HELLO, ROOT, Command

ASK = "specs/ask.walk"
TWO_STREAMS = """mstarc.ir 1
model two
config d = 4
node n: stateless { op f(x: i64[]) -> (y: i64[]) }
stream left: i64[] by sliding_window(size = 4, stride = 2) at_end drop capacity 16
stream right: i64[] by fixed(size = 1) capacity 3
walk source(%0 x: host i64[]) {
  loop going times 4 do {
    send %0 to left
    send %0 to right
  }
}
walk sink() {
  for %0 a: chunk(left, i64[]) in left { emit %0 as tensor }
  for %1 b: chunk(right, i64[]) in right { emit %1 as tensor }
}
request r(%0 x: host i64[]) -> (tensor) {
  together {
    arm a { call source(%0) }
    arm b { call sink() }
  }
}
"""


def program(name: str) -> Program:
    found = load_model(ROOT / name).program
    assert found is not None
    return found


@pytest.fixture(params=[HELLO, ASK, "two"])
def seen(request: pytest.FixtureRequest) -> Picture:
    name = str(request.param)
    return picture(parse_program(TWO_STREAMS) if name == "two" else program(name))


def test_what_there_is_to_draw() -> None:
    ask = picture(program(ASK))
    assert [(f.stream, f.source, f.sink) for f in ask.flows] == [("phrases", "answer", "speak")]
    assert ask.flows[0].text == "phrase(cut, max = 64), at_end partial, capacity 128"
    touches = {(t.walk, t.store, t.writes) for t in ask.touches}
    assert touches == {
        ("read", "main", True),
        ("answer", "main", True),
        ("hear", "sound", True),
        ("hear", "said", True),
    }
    answer = next(card for card in ask.walks if card.name == "answer")
    assert answer.title == "answer(ids: i64[T])"
    texts = [(row.depth, row.text) for row in answer.rows]
    assert (0, "loop speaking max max_tokens carry token") in texts
    assert (1, "stop when token == eos and not ignore_eos") in texts
    assert (1, "send token -> phrases") in texts
    arms = [row.text for row in ask.requests[0].rows if row.kind == "arm"]
    assert arms == ["answering", "speaking"]


def test_a_call_is_labelled_with_its_own_arm() -> None:
    text = to_mermaid(picture(program(ASK)))
    assert 'request_chat -->|"answering"| walk_answer' in text
    assert 'request_chat -->|"speaking"| walk_speak' in text
    assert "request_chat --> walk_read" in text, "a call before the arms has no label"


def test_the_page_is_well_formed_and_needs_nothing(seen: Picture) -> None:
    page = to_html(seen)
    assert not re.search(r"(src|href)=|@import|url\((?!#)|fetch|XMLHttp|import\(|<script [^>]", page)
    assert set(re.findall(r"https?://[^\"']*", page)) == {"http://www.w3.org/2000/svg"}, "a name, not an address"
    root = _svg(page)
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    for card in (*seen.requests, *seen.walks):
        assert card.title in texts
        for row in card.rows:
            assert row.text in texts
    for flow in seen.flows:
        assert f"{flow.stream}: {flow.text}" in texts
    classes = [node.get("class", "") for node in root.iter("{http://www.w3.org/2000/svg}path")]
    assert classes.count("edge stream") == len(seen.flows)
    assert classes.count("edge touch") == len(seen.touches)
    assert classes.count("edge calls") == sum(bool(row.calls) for card in seen.requests for row in card.rows)


def test_no_box_covers_another_and_all_are_on_the_page(seen: Picture) -> None:
    root = _svg(to_html(seen))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = []
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, w, h = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
        boxes.append((x, y, x + w, y + h))
    streams = {flow.stream for flow in seen.flows}
    assert len(boxes) == len(seen.requests) + len(seen.walks) + len(seen.stores) + len(streams)
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)


def _svg(page: str) -> xml.Element:
    return xml.fromstring(page[page.index("<svg") : page.index("</svg>") + len("</svg>")])


def test_dot_names_every_node_that_an_edge_uses(seen: Picture) -> None:
    text = to_dot(seen)
    declared = set(re.findall(r"^  (\w+) \[label", text, re.M))
    used = {name for edge in re.findall(r"^  (\w+) -> (\w+)", text, re.M) for name in edge}
    assert used and used <= declared
    assert text.count("style = bold") == len(seen.flows)
    assert text.count('"') % 2 == 0


def test_the_ending_of_the_file_says_which(mstarc: Command, tmp_path: Path) -> None:
    starts = {"html": "<!doctype html>", "mmd": "flowchart", "dot": 'digraph "hello"'}
    for ending, start in starts.items():
        path = tmp_path / f"x.{ending}"
        ran = mstarc("graph", HELLO, "-o", path)
        assert (ran.status, ran.out) == (0, "")
        assert path.read_text().startswith(start)
        assert mstarc("graph", HELLO, "--format", ending).out == path.read_text()
    assert mstarc("graph", HELLO).out == (tmp_path / "x.mmd").read_text()
    assert mstarc("graph", "examples/hello/generated").out == (tmp_path / "x.mmd").read_text()
    wrong = mstarc("graph", HELLO, "-o", tmp_path / "x.png")
    assert (wrong.status, ".html" in wrong.err) == (2, True)
    lost = mstarc("graph", HELLO, "-o", tmp_path / "no" / "x.dot")
    assert (lost.status, "cannot be written" in lost.err) == (2, True)


def test_a_region_is_shown(seen: Picture) -> None:
    loops = {
        row.text.split()[1]: row.region for card in seen.walks for row in card.rows if row.text.startswith("loop ")
    }
    assert loops in ({"counting": True}, {"writing": True, "speaking": True}, {"going": False}), "`going` sends twice"
    number = sum(loops.values())
    assert sum(row.region for card in (*seen.requests, *seen.walks) for row in card.rows) == number
    assert to_html(seen).count('<path class="region"') == number
    assert to_mermaid(seen).count("[region]") == to_dot(seen).count("[region]") == number


def test_streams_of_many_walks_have_one_label() -> None:
    senders = TWO_STREAMS.replace("walk sink", "walk more(%0 x: host i64[]) {\n  send %0 to left\n}\nwalk sink")
    seen = picture(parse_program(senders))
    assert [(f.stream, f.source) for f in seen.flows] == [("left", "source"), ("left", "more"), ("right", "source")]
    page = to_html(seen)
    assert page.count('class="edge stream"') == 3 and page.count('class="on-stream"') == 2
    assert "2 streams" in page


def test_a_declared_type_is_its_name() -> None:
    titles = [card.title for card in picture(program("tests/passes/models/bagel.walk")).walks]
    assert titles[:2] == ["read_text(part: text_part)", "read_image(part: image_part)"]


def test_the_picture_of_the_readme(mstarc: Command, tmp_path: Path) -> None:
    """It stands alone, is small, and is the one that the spec gives now: `mstarc graph specs/ask.walk -o specs/ask.svg`."""
    assert mstarc("graph", ASK, "-o", tmp_path / "ask.svg").status == 0
    text = (tmp_path / "ask.svg").read_text()
    assert text.startswith('<svg xmlns="http://www.w3.org/2000/svg"') and "<script" not in text and "<style>" in text
    xml.fromstring(text)
    assert len(text) < 200_000
    assert text == (ROOT / "specs/ask.svg").read_text()
    page = mstarc("graph", ASK, "--format", "html").out
    assert text[text.index("<defs>") :] in page
