"""The cost model: counts by hand, bagel's branch-steps, and the printed estimates of shipped models, held against goldens.

`UPDATE_GOLDENS=1` writes the goldens anew.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from mstarc.cli.costs import cost_lines, cost_tables
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Program
from mstarc.passes.shape import shape_of
from mstarc.plan.build import build_plan
from mstarc.plan.chips import CHIPS
from mstarc.plan.cost import Estimate, estimate
from mstarc.plan.course import course_of
from mstarc.plan.link import link
from mstarc.plan.model import SpecPlan
from mstarc.plan.placement import read_placement
from mstarc.plan.weights import stored_bytes
from mstarc.workspace import Model, load_model
from mstarc_runtime.abi.linked import CheckpointLink, Linked

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = Path(__file__).parent / "goldens"
TEXT = {"given": ["text"], "wants": ["image"], "parts": ("text_part",)}
EDIT = {"given": ["image", "text"], "wants": ["image"], "parts": ("image_part", "text_part")}


@lru_cache
def model(name: str) -> Model:
    return load_model(ROOT / f"specs/{name}.walk")


def bound(name: str) -> Program:
    program = model(name).bound
    assert program is not None
    return program


def costs(name: str, placement: str = "1xh200", sizes: dict[str, int] | None = None, **shape: Any) -> Estimate:
    """The estimate of a shipped model, linked without its generated code."""
    found, report = model(name), Collector()
    assert found.program is not None and found.binding is not None
    plan = build_plan(
        found.program, found.binding, SpecPlan(path="x", binding="", digest=""), found.checked.sources[found.path]
    )
    placed = read_placement(ROOT / "specs/placements" / f"{placement}.toml", report)
    assert placed is not None, report.findings()
    linked = link(plan, placed, ROOT / "generated/x", report, limits=Collector())
    assert linked is not None, [d.message for d in report.findings()]
    asked = shape_of(bound(name), **shape)
    return estimate(bound(name), linked, placed, asked, found.binding.cost, found.binding.config, sizes)


# --------------------------------------------------------------------------------------------------------------------- bagel


def test_bagel_from_text_needs_90_branch_steps() -> None:
    found = costs("bagel", **TEXT)
    counts = [(b.iterations, b.branches, b.reused) for b in found.branches]
    assert counts == [(41, ("v", "a"), ()), (8, ("v",), ())]
    assert sum(b.steps for b in found.branches) == 90
    assert found.loops["draw.denoise"] == 49


def test_bagel_edits_with_three_branches() -> None:
    assert [(b.iterations, b.branches) for b in costs("bagel", **EDIT).branches] == [(49, ("v", "a", "b"))]


def test_bagel_takes_an_equal_context_once() -> None:
    guided = costs("bagel", **TEXT, params={"cfg_img": 2.0}).branches
    assert [(b.iterations, b.branches, b.reused) for b in guided] == [(41, ("v", "a"), ("b",)), (8, ("v",), ())]
    thought = costs("bagel", **TEXT, params={"cfg_img": 2.0, "think": True}).branches
    assert [(b.iterations, b.branches, b.reused) for b in thought] == [(41, ("v", "a", "b"), ()), (8, ("v",), ())]
    plain = costs("bagel", **TEXT, params={"cfg_text": 1.0}).branches
    assert [(b.iterations, b.branches) for b in plain] == [(49, ("v",))]


def test_bagel_counted_by_hand() -> None:
    """4098 rows; 28 layers of 233 M numbers for a row; attention over what is there and the rows themselves."""
    layer = 2 * 3584 * 28 * 128 + 2 * 3584 * 4 * 128 + 3 * 3584 * 18944
    assert layer == 233_046_016
    rows, texts = 4096 + 2, 64
    branch = 2 * rows * 28 * layer
    attention = 4 * 28 * 128 * 28 * rows
    main, no_text = attention * (texts + rows), attention * rows
    call = next(c for c in costs("bagel", **TEXT).calls if c.op == "llm.velocity")
    assert call.flops == 90 * branch + 49 * main + 41 * no_text
    assert (call.calls, call.rows, call.bound) == (90, 90 * rows, "compute")
    assert call.bytes == 49 * (2 * 28 * layer * 2 + texts * 2 * 28 * 4 * 128 * 2), "weights once for both branches"
    assert call.seconds is not None and call.seconds == pytest.approx(call.flops / CHIPS["h200"].rate)


def test_bagel_memory() -> None:
    memory = costs("bagel", **TEXT).memory[0]
    entry = 2 * 28 * 4 * 128 * 2
    assert memory.contexts == 4 * 32768 * entry and memory.request == 64 * entry
    assert memory.limit == CHIPS["h200"].memory and memory.weights is not None
    assert 29e9 < memory.weights < 30e9, "14 G numbers of the language model, and the fp32 autoencoder"


def test_a_smaller_image_costs_less() -> None:
    half = costs("bagel", **TEXT, params={"height": 512, "width": 512})
    full = costs("bagel", **TEXT)
    assert [b.steps for b in half.branches] == [b.steps for b in full.branches]
    assert half.flops < full.flops / 4


# -------------------------------------------------------------------------------------------------------------- other models


def test_orpheus_decodes_at_the_speed_of_its_weights() -> None:
    """6.6 GB of weights are 1.5 ms of an H200's memory; 2000 steps of 7 make (2000 - 28) // 7 + 1 windows."""
    found = costs("orpheus")
    step = next(c for c in found.calls if c.op == "llm.step")
    assert step.bound == "memory" and step.seconds is not None
    assert step.seconds / 2000 == pytest.approx(1.55e-3, rel=0.02)
    assert next(c for c in found.calls if c.op == "snac.decode").calls == (2000 - 28) // 7 + 1
    assert found.seconds is None and found.unknown == ("snac.decode",)


def test_a_dynamic_loop_by_its_ends_is_the_sum_of_its_iterations() -> None:
    """Entries before step i are T + i, so 10 steps behind 64 read 64 + ... + 73 and write 10."""
    step = next(c for c in costs("orpheus", params={"max_tokens": 10}).calls if c.op == "llm.step")
    weights = 28 * (2 * 3072 * 24 * 128 + 2 * 3072 * 8 * 128 + 3 * 3072 * 8192) + 156940 * 3072
    entry = 2 * 28 * 8 * 128 * 2
    assert step.bytes == 10 * weights * 2 + (sum(range(64, 74)) + 10) * entry


def test_sizes_that_are_set() -> None:
    one, three = costs("pi05", sizes={"C": 1}), costs("pi05")
    assert (one.assumed["C"], three.assumed["C"]) == ("1 (set)", "3 (cost.sizes)")
    rows = {c.op: c.rows for c in one.calls}
    assert rows["llm.read"] == 256 + 200 and rows["llm.velocity"] == 10 * 50
    assert one.flops < three.flops


def on(tmp_path: Path, placement: str, chip: str) -> str:
    """A shipped placement whose ranks all have a chip."""
    text = (ROOT / f"specs/placements/{placement}.toml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("chip")]
    lines = [f'{line}\nchip = "{chip}"' if line.startswith("device") else line for line in lines]
    path = tmp_path / f"{placement}.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path.with_suffix(""))


def test_branches_on_ranks_of_their_own_run_at_once(tmp_path: Path) -> None:
    """Three ranks hold the language model; a guided step takes as long as its slowest branch, and each rank reads the weights."""
    three = on(tmp_path, "3xh100", "h200")
    one, found = costs("bagel", **EDIT), costs("bagel", three, **EDIT)
    calls = {c.ranks: c for c in found.calls if c.op == "llm.velocity"}
    assert {ranks: c.calls for ranks, c in calls.items()} == {(0,): 49, (1,): 49, (2,): 49}
    assert one.seconds is not None and found.seconds is not None
    assert found.flops == one.flops and found.bytes > one.bytes
    assert 2.5 < one.seconds / found.seconds < 3
    assert found.busy[0] > found.busy[1] > found.busy[2] > 3.5, "the longest context is on rank 0"
    assert all(m.weights is not None and m.weights > 28e9 for m in found.memory)
    assert found.memory[1].contexts < found.memory[0].contexts


def test_a_tensor_parallel_group_shares_weights_and_entries(tmp_path: Path) -> None:
    one, two = costs("orpheus"), costs("orpheus", on(tmp_path, "tp2", "h200"))
    steps = [next(c for c in found.calls if c.op == "llm.step") for found in (one, two)]
    assert steps[1].ranks == (0, 1) and steps[0].seconds is not None and steps[1].seconds is not None
    assert steps[1].seconds == pytest.approx(steps[0].seconds / 2)
    assert two.memory[1].contexts == one.memory[0].contexts / 2


def test_a_cpu_has_no_ceilings() -> None:
    found = costs("pi05", "1xcpu")
    assert found.seconds is None and found.chips == {} and found.flops == costs("pi05").flops
    weights, halved = found.memory[0].weights, costs("pi05").memory[0].weights
    assert weights is not None and halved is not None and weights > 1.5 * halved, "f32 on a CPU"


def test_the_course_of_the_talker() -> None:
    """qwen3_omni does not link to anything yet, but its course is known: a frame for each word and pad, chunks of 25."""
    found = model("qwen3_omni")
    assert found.binding is not None
    shape = shape_of(bound("qwen3_omni"), given=["text"], wants=["text", "audio"], parts=("text_part",))
    course = course_of(bound("qwen3_omni"), shape, found.binding.cost)
    assert course.loops["answer.words"] == 2048 and course.loops["talk.speaking"] == 4095
    assert course.loops["vocode.for frames"] == -(-4095 // 25)
    steps = {f"{s.node}.{s.op}": s for s in course.root.steps()}
    words = sum(s.times for s in course.root.steps() if s.op == "step" and s.node == "thinker")
    assert words == 2047, "the last id is shown, never run"
    assert steps["vocoder.decode"].sizes["n"] in (25, 50, 45)
    assert steps["talker.read"].rows == 64


def test_what_a_checkpoint_holds(tmp_path: Path) -> None:
    header = {"a": {"dtype": "BF16", "shape": [3, 4], "data_offsets": [0, 24]}, "__metadata__": {"format": "pt"}}
    data = json.dumps(header).encode()
    (tmp_path / "one.safetensors").write_bytes(len(data).to_bytes(8, "little") + data + bytes(24))
    header = {"b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    data = json.dumps(header).encode()
    (tmp_path / "two.safetensors").write_bytes(len(data).to_bytes(8, "little") + data + bytes(8))
    folder = stored_bytes(CheckpointLink(name="w", path=str(tmp_path)))
    assert folder is not None and (folder.bytes, folder.source) == (32, "safetensors headers of w")
    (tmp_path / "x.gguf").write_bytes(bytes(7))
    file = stored_bytes(CheckpointLink(name="w", path=str(tmp_path / "x.gguf")))
    assert file is not None and file.bytes == 7
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 40)
    assert stored_bytes(CheckpointLink(name="w", path=str(tmp_path / "bad.safetensors"))) is None
    assert stored_bytes(CheckpointLink(name="w", path=str(tmp_path / "nothing"))) is None
    assert stored_bytes(CheckpointLink(name="w", package="no_such_package_here")) is None


# ------------------------------------------------------------------------------------------------------------------- goldens

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bagel_from_text": ("bagel", TEXT),
    "bagel_edit": ("bagel", EDIT),
    "orpheus": ("orpheus", {}),
    "pi05": ("pi05", {}),
    "vjepa2_ac_rollout": ("vjepa2_ac", {"request": "rollout", "params": {"horizon": 30}}),
    "whisper": ("whisper", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_goldens(case: str) -> None:
    name, shape = CASES[case]
    found = costs(name, **shape)
    lines = [f"costs of {found.shape}"]
    for title, heads, rows in cost_tables(found):
        lines += ["", title, *(" | ".join(row) for row in (heads, *rows))]
    text = "\n".join([*lines, "", *cost_lines(found)]) + "\n"
    path = GOLDENS / f"{case}.txt"
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_linked_program_names_no_chip() -> None:
    """Chips are for estimates; the runtime asks the device itself."""
    assert "chip" not in Linked.__struct_fields__
