"""MC207 and MC503: what does not fit the memory of a rank whose chip is known, counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mstarc.diagnostics.core import Collector, Diagnostic
from mstarc.ir.text import parse_program
from mstarc.plan.chips import CHIPS
from mstarc.plan.evaluate import MostScope
from mstarc.plan.layout import layouts_of
from mstarc.plan.link import link
from mstarc.plan.placement import Placement, parse_placement
from mstarc.plan.temporaries import peak_of
from mstarc.source import SourceFile
from tests.codegen.harness import plan_of

H200 = '[ranks.0]\ndevice = "cuda:0"\nchip = "h200"\n'
LIMIT = 0.95 * CHIPS["h200"].memory
TEXT = """mstarc.ir 1
model t
param steps: int low 1 high {steps} = 2
cache kv(layers = 2, heads = 4, kv_heads = 2, head_dim = 64)
context c on kv max {entries}
node a: transformer on kv {{
  op f(x: f32[1000, 1000]) -> (y: f32[1000, 1000]) {{ attend causal positions seq takes 1 }}
}}
node b: stateless {{
  op g(x: f32[1000, 1000]) -> (y: f32[1000, 1000])
}}
stream s: f32[1000, 1000] by fixed(size = 1) at_end drop capacity {capacity}
walk w(%0 x: f32[1000, 1000]) {{
  loop go times param.steps carry %1 t: f32[1000, 1000] = %0 then %2 -> %3 z: f32[1000, 1000]
    gather kept -> %4 kept: f32[dim.n, 1000]
  do {{
    %2 y: f32[1000, 1000] = invoke a.f(%1) writes c
    when param.steps > 1 {{
      collect %2 as kept
    }}
    send %2 to s
  }}
  emit %4 as tensor
}}
walk u() {{
  for %0 k: chunk(s, f32[1000, 1000]) in s {{
    %1 y: f32[1000, 1000] = invoke b.g(%0[0])
    emit %1 as tensor
  }}
}}
"""
ITEM = 4_000_000  # bytes of f32[1000, 1000]
ENTRY = 2 * 2 * 2 * 64 * 2  # keys and values, layers, KV heads, head dim, bf16


def findings(toml: str = H200, config: dict[str, Any] | None = None, **sizes: int) -> tuple[Diagnostic, ...]:
    """What linking finds about memory, apart from what does not link."""
    plan = plan_of(parse_program(TEXT.format(**{"steps": 2, "entries": 8, "capacity": 2, **sizes})))
    report, limits = Collector(), Collector()
    placement = parse_placement(SourceFile("p.toml", toml), report)
    assert placement is not None
    overrides = {f"a.{key}": value for key, value in (config or {}).items()}
    assert link(plan, placement, Path("p"), report, overrides, limits) is not None, report.findings()
    return limits.findings()


def codes(**given: Any) -> list[str]:
    return [found.rule.code for found in findings(**given)]


def test_what_fits_is_no_finding() -> None:
    assert codes() == []


def test_a_loop_collects_more_than_there_is() -> None:
    """The bound is the param's upper end, to the iteration."""
    most = int(LIMIT // ITEM)
    (found,) = findings(steps=most + 1)
    assert found.rule.code == "MC207"
    assert f"loop `w.go` collects `kept`: steps at most {most + 1}, {most + 1} x 1000 x 1000 x 4 B" in found.message
    assert "`h200` has 141.79 GB (95% of 149.25 GB)" in found.message
    span = found.primary.span
    assert (span.file, H200[span.start : span.end]) == ("p.toml", 'chip = "h200"')
    assert codes(steps=most) == ["MC503"], "alone it fits, and with a context and a stream it does not"


@pytest.mark.parametrize("what", ["entries", "capacity"])
def test_contexts_and_streams_count(what: str) -> None:
    """Each to the entry: the rest of the budget is 2 collected values, 1 that is held, and 2 items of the stream or 8 entries."""
    one = {"entries": ENTRY, "capacity": ITEM}[what]
    rest = 3 * ITEM + {"entries": 2 * ITEM, "capacity": 8 * ENTRY}[what]
    most = int((LIMIT - rest) // one)
    assert codes(**{what: most}) == []
    assert codes(**{what: most + 1}) == ["MC503"]


def test_the_numbers_with_their_sources() -> None:
    (found,) = findings(entries=200_000_000)
    assert found.message.startswith(
        f"rank 0 needs at least {(200_000_000 * ENTRY + 5 * ITEM) / 1e9:.2f} GB with one request"
    )
    assert found.notes[0] == "weights not known of a, b (neither a checkpoint nor a config says it)"
    assert found.notes[1] == "contexts at their max 204.80 GB: c 200000000 x 1024 B"
    assert found.notes[2].startswith("collected 0.01 GB: loop `w.go` collects `kept`")
    assert found.notes[3] == "streams 0.01 GB, at their capacity"
    assert found.notes[4] == "values 4 MB at once: walk `w`, when it makes `x`, which it is given"


HELD = """mstarc.ir 1
model t
param n: int low 1 high 8 = 2
node b: stateless {
  op small(x: f32[10]) -> (y: f32[10])
  op large(x: f32[10]) -> (y: f32[param.n, 100])
  op join(x: f32[param.n, 100], y: f32[10]) -> (y: f32[10])
  op free(x: f32[10]) -> (y: f32[dim.R])
}
walk w(%0 x: f32[10]) {
  %1 a: f32[10] = invoke b.small(%0)
  %2 l: f32[param.n, 100] = invoke b.large(%1)
  %3 z: f32[dim.R] = invoke b.free(%1)
  loop go times 3 carry %4 t: f32[10] = %1 then %6 -> %7 u: f32[10] do {
    %5 s: f32[10] = invoke b.small(%4)
    %6 j: f32[10] = invoke b.join(%2, %5)
  }
  %8 e: f32[10] = invoke b.small(%7)
}
"""


def test_the_peak_of_values_and_the_two_operations_that_make_it() -> None:
    """In the loop, where `l` is held for each iteration: 8 x 100 + 10 + 10 numbers; `x` has gone, and `a` is what the loop began with."""
    plan = plan_of(parse_program(HELD))
    layout = layouts_of(plan, Placement())["w"]
    peak = peak_of(layout, 0, MostScope(plan, {}))
    assert peak is not None
    assert (peak.bytes, peak.made, peak.held) == (4 * (800 + 10 + 10), "`j` by `b.join`", "`l` by `b.large`")
    assert peak.text == "walk `w`, when it makes `j` by `b.join` while `l` by `b.large` is held"
    assert peak_of(layout, 1, MostScope(plan, {})) is None


def test_weights_by_the_closed_form_of_a_config() -> None:
    """80 layers of 8192 with feed-forwards of 28672 are 69 G numbers, 137 GB; 90 layers do not fit."""
    config = {"hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
    config |= {"vocab_size": 32000, "intermediate_size": 28672}
    assert codes(config=config | {"num_hidden_layers": 80}) == []
    (found,) = findings(config=config | {"num_hidden_layers": 90})
    layer = 2 * 8192 * 64 * 128 + 2 * 8192 * 8 * 128 + 3 * 8192 * 28672
    total = 2 * (90 * layer + 2 * 32000 * 8192) / 1e9
    assert (
        f"weights at least {total:.2f} GB, not known of b (neither a checkpoint nor a config says it): a: {total:.2f} GB, closed form"
        in found.notes[0]
    )


def test_weights_by_the_headers_of_a_checkpoint_count_too(tmp_path: Path) -> None:
    """A header may tell of more than the file holds: only headers are read."""
    from msgspec.structs import replace

    size = 150 * 10**9
    header = json.dumps({"w": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    (tmp_path / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    plan = plan_of(parse_program(TEXT.format(steps=2, entries=8, capacity=2)))
    components = {name: {**given, "checkpoint": "w"} for name, given in plan.binding.components.items()}
    bound = replace(plan.binding, components=components, checkpoints={"w": {"path": str(tmp_path)}})
    report, limits = Collector(), Collector()
    placement = parse_placement(SourceFile("p.toml", H200), report)
    assert placement is not None
    link(replace(plan, binding=bound), placement, Path("p"), report, None, limits)
    (found,) = limits.findings()
    assert "weights 150.00 GB: 150.00 GB, safetensors headers of w" in found.notes[0], "once for both nodes"


def test_without_a_chip_nothing_is_compared() -> None:
    assert codes(toml='[ranks.0]\ndevice = "cuda:0"\n', entries=10**9, steps=10**6) == []


def test_each_rank_has_its_own_memory() -> None:
    toml = H200 + H200.replace("ranks.0", "ranks.1").replace("cuda:0", "cuda:1") + "[place]\na = 1\nb = 0\n"
    (found,) = findings(toml="default = 0\n" + toml, entries=200_000_000)
    assert found.message.startswith("rank 1 needs at least")
