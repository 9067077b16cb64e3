"""MC006 on declarations: a config, param or let that nothing reads, wherever it could be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.workspace import load_model
from tests.passes.sources import UNREAD

DECLARED = "config {{ size = 8 }}\nparam many : int in 1..9 = 3\nlet twice = {let}\n"
WALK = "walk w(x: i64) {{ loop l times {times} carry x {{ x = a.f(x) }}  emit x as tensor }}\n"
REQUEST = "request r(x: i64) -> tensor {{ {first}w(x) }}\n"


NODES = "node a : stateless { op f(x: i64) -> y: i64 }\n"


def unread(folder: Path, let: str = "2", times: str = "4", first: str = "", more: str = "") -> list[str]:
    """The names in the findings of a model in which nothing is read but what these places read."""
    path = folder / "t.walk"
    text = DECLARED.format(let=let) + NODES + WALK.format(times=times) + more + REQUEST.format(first=first)
    path.write_text("model t\n" + text, encoding="utf-8")
    found = [d for d in load_model(path).checked.findings if d.rule.code not in ("MC908", "MC515")]
    assert all(d.rule.code == "MC006" and d.message.startswith(UNREAD) for d in found), [d.message for d in found]
    return [d.message.removeprefix(UNREAD) for d in found]


CONFIG, PARAM, LET = "config `size`", "param `many`", "let `twice`"


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ({}, [CONFIG, PARAM, LET]),
        ({"times": "many"}, [CONFIG, LET]),
        ({"let": "2 * size", "times": "many"}, [LET]),
        ({"let": "2 * size", "times": "twice"}, [PARAM]),
        ({"first": "require many > size - 5 "}, [LET]),
        ({"more": "node c : stateless { op h(x: f32[size]) -> y: f32[twice] }\n"}, [PARAM]),
        ({"more": "param other : int in 1..size = twice\n"}, [PARAM, "param `other`"]),
    ],
)
def test_what_nothing_reads(tmp_path: Path, places: dict[str, str], expected: list[str]) -> None:
    assert unread(tmp_path, **places) == expected


def test_a_comment_allows_it(tmp_path: Path) -> None:
    path = tmp_path / "t.walk"
    param = "param kept : bool = true  # mstarc: allow MC006 -- clients of the last version send it\n"
    path.write_text("model t\n" + param + NODES + WALK.format(times="4") + REQUEST.format(first=""))
    assert [d.rule.code for d in load_model(path).checked.findings] == ["MC908"]
