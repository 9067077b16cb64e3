"""MC909 config-unused: which numbers of a binding nothing reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.workspace import load_model

MODEL = """model m
config { big = shared.big }
extern pick(x: i64) -> i64
node a : stateless { op f(x: i64) -> y: i64 }
walk w(x: i64) {
    loop l times big carry x { x = a.f(x) }
    emit x as scalar
}
request r(x: i64) -> scalar { w(pick(x)) }
"""
YAML = (
    "config:\n  shared: {{big: 3{more}}}\n{section}components: {{a: pack.parts.A}}\nexterns: {{pick: {pick}}}\n{rest}"
)
SERVED = "modalities:\n  scalar: {decoder: pack.host.Host.numbers}\n"


@pytest.mark.parametrize(
    ("parts", "unused"),
    [
        ({}, []),
        ({"more": ", small: 1"}, ["shared.small"]),
        ({"section": "  a: {width: 8}\n"}, []),
        ({"section": "  b: {width: 8, depth: 2}\n"}, ["b.width", "b.depth"]),
        ({"section": "  b: {width: 8}\n", "pick": "pack.host.Host.pick"}, []),
        ({"section": "  b: {width: 8}\n", "rest": SERVED}, []),
        ({"section": "  b: {width: 8}\n", "pick": "pack.host.pick"}, ["b.width"]),
    ],
)
def test_what_nothing_reads(tmp_path: Path, parts: dict[str, str], unused: list[str]) -> None:
    given = {"more": "", "section": "", "pick": "pack.host.pick", "rest": ""}
    (tmp_path / "m.walk").write_text(MODEL)
    (tmp_path / "m.yaml").write_text(YAML.format(**{**given, **parts}))
    checked = load_model(tmp_path / "m.walk").checked
    assert [d.rule.code for d in checked.findings] == ["MC909"] * len(unused)
    assert [d.subject for d in checked.findings] == unused
    assert checked.exit_code() == 0 and checked.exit_code(deny_warnings=bool(unused)) == bool(unused)
