"""Source text in, findings out, for the tests of checks. No binding file is written, so MC908 is left out; the texts share their
declarations, so MC006 and MC515 on one that a text does not use are, too.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from mstarc.diagnostics.core import Diagnostic
from mstarc.workspace import load_model

UNREAD = "nothing reads the "
UNCALLED = "no walk calls "
NODES = """
node a : stateless { op f(x: i64) -> y: i64   op g(x: i64, z: i64) -> y: i64   op noise(x: i64) -> y: i64 { random } }
node b : stateless { op many(xs: i64[n]) -> y: i64   op wave(xs: i64[n]) -> pcm: f32[4 * n - 3] }
"""


def findings(text: str) -> list[Diagnostic]:
    """All findings of `model t` with these declarations."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.walk"
        path.write_text("model t\n" + text, encoding="utf-8")
        found = load_model(path).checked.findings
    return [d for d in found if d.rule.code != "MC908" and not d.message.startswith((UNREAD, UNCALLED))]


def codes(text: str) -> list[str]:
    """Their codes, sorted."""
    return sorted(d.rule.code for d in findings(text))


def messages(text: str, code: str) -> list[str]:
    """Messages of the findings with this code."""
    return [d.message for d in findings(text) if d.rule.code == code]


def in_walk(body: str, declarations: str = "") -> str:
    """A model with one walk `w(x: i64)` that emits tensors."""
    return f"{declarations}{NODES}walk w(x: i64) {{ {body} }}\nrequest r(x: i64) -> tensor {{ w(x) }}\n"


def piped(
    stream: str, taker: str = "for u in s { emit b.many(u) as tensor }", sends: str = "", declarations: str = ""
) -> str:
    """A model with a sender of stream `s` and a taker, in two arms."""
    sends = sends or "loop l times 9 carry x { send x -> s  x = a.f(x) }"
    arms = "request r(x: i64) -> tensor { together { sending: w(x)  taking: t() } }\n"
    return f"{declarations}{NODES}{stream}\nwalk w(x: i64) {{ {sends} }}\nwalk t() {{ {taker} }}\n{arms}"
