"""MC517 and MC007 of sizes that are numbers, and MC902 of config values that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.workspace import load_model

SPEC = """model m
config {{ width = a.width  depth = a.depth  most = a.most }}
param less : int in 0..9 = 0
cache   kv : kv(layers = depth, heads = {heads}, kv_heads = {groups}, head_dim = 8)
context c on kv max {most}
node a : transformer(kv) {{ op f(x: i64) -> y: f32[{dim}] {{ attend causal  positions seq }} }}
walk w(x: i64) {{ emit a.f(x) as tensor  emit noise(f32[4 - less, {noise}]) as tensor }}
request r(x: i64) -> tensor {{ w(x) }}
"""
GOOD = {"heads": "4", "groups": "2", "most": "8", "dim": "width", "noise": "2"}
VALUES = {"width": "6", "depth": "2", "most": "8"}


def told(
    folder: Path, spec: dict[str, str] | None = None, values: dict[str, str] | None = None
) -> list[tuple[str, str, str]]:
    """(code, line, message) of what checking finds."""
    (folder / "m.walk").write_text(SPEC.format(**GOOD | (spec or {})))
    config = ", ".join(f"{key}: {value}" for key, value in (VALUES | (values or {})).items())
    (folder / "m.yaml").write_text(f"config:\n  a: {{{config}}}\ncomponents: {{a: pack.A}}\n")
    checked = load_model(folder / "m.walk").checked
    found = []
    for each in checked.findings:
        if each.rule.severity == "error":
            source, span = checked.sources[each.primary.span.file], each.primary.span
            found.append((each.rule.code, source.line_text(source.line_of(span.start)), each.message))
    return found


def test_sizes_that_can_be(tmp_path: Path) -> None:
    assert told(tmp_path) == []
    assert told(tmp_path, {"most": "most", "groups": "4", "noise": "width - 6"}) == []
    assert told(tmp_path, {"heads": "width", "groups": "3"}) == []


@pytest.mark.parametrize(
    ("spec", "code", "line", "message"),
    [
        ({"heads": "0"}, "MC517", "cache ", "`heads` of cache `kv` is at least 1, and `0` is not"),
        ({"groups": "3"}, "MC517", "cache ", "cache `kv` has 4 heads and 3 of keys and values, which do not divide them"),
        ({"groups": "width"}, "MC517", "cache ", "cache `kv` has 4 heads and 6 of keys and values"),
        ({"groups": "8"}, "MC517", "cache ", "cache `kv` has 4 heads and 8 of keys and values"),
        ({"most": "0"}, "MC517", "context ", "the `max` of context `c` is at least 1, and `0` is not"),
        ({"most": "most - 8"}, "MC517", "context ", "the `max` of context `c` is at least 1, and `most - 8` is 0"),
        ({"dim": "width - 8"}, "MC007", "node ", "a dim of `y` of op `a.f` is at least 0, and `width - 8` is -2"),
        ({"noise": "width - 8"}, "MC007", "walk ", "a dim of noise `noise` of walk `w` is at least 0, and `width - 8` is -2"),
        ({"noise": "0 - 1 - less"}, "MC007", "walk ", "a dim of noise `noise` of walk `w` is at least 0, and `0 - 1 - less` is not"),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be(spec: dict[str, str], code: str, line: str, message: str, tmp_path: Path) -> None:
    (found,) = told(tmp_path, spec)
    assert found[0] == code and found[1].startswith(line) and found[2].startswith(message)


@pytest.mark.parametrize(
    ("values", "spec", "message"),
    [
        ({"width": '"6"'}, {}, "`config.a.width` is '6', and a dim of `y` of op `a.f` takes a whole number of at least 0"),
        ({"width": "6.5"}, {}, "`config.a.width` is 6.5, and"),
        ({"width": "-6"}, {}, "`config.a.width` is -6, and"),
        ({"width": "[6]"}, {}, "`config.a.width` is [6], and"),
        ({"width": "true"}, {"dim": "2 * width"}, "`config.a.width` is True, and a dim of `y` of op `a.f` takes a number"),
        ({"depth": "0"}, {}, "`config.a.depth` is 0, and `layers` of cache `kv` takes a whole number of at least 1"),
        ({"most": "0"}, {"most": "most"}, "`config.a.most` is 0, and the `max` of context `c` takes a whole number of at least 1"),
    ],
)  # fmt: skip
def test_a_config_value_that_is_no_size_is_told_at_its_key(
    values: dict[str, str], spec: dict[str, str], message: str, tmp_path: Path
) -> None:
    (found,) = told(tmp_path, spec, values)
    assert found[0] == "MC902" and found[1].startswith("  a: {") and found[2].startswith(message)


def test_a_number_within_an_expression_need_not_be_whole(tmp_path: Path) -> None:
    assert told(tmp_path, {"dim": "width * 2"}, {"width": "1.5"}) == []
