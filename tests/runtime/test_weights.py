"""Rules from the tensors of a checkpoint to the parameters of a component: what each does, and what it says where it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mstarc.binding import read_binding
from mstarc.diagnostics.core import Collector
from mstarc.source import SourceFile
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.loading import load_components
from mstarc_runtime.weights import fill, mapped
from tests.codegen.written import compiled

ONE, TWO = torch.arange(6.0).view(2, 3), torch.arange(6.0, 12.0).view(2, 3)
FILE = {
    "model.layers.0.q.weight": ONE,
    "model.layers.0.k.weight": TWO,
    "model.layers.1.q.weight": TWO,
    "model.layers.1.k.weight": ONE,
    "model.embed": ONE,
    "other.x": TWO,
}


def test_strip_and_drop() -> None:
    assert set(mapped(FILE, [{"strip": "model."}])) == {name[6:] for name in FILE if name.startswith("model.")}
    assert set(mapped(FILE, [{"drop": "model.layers.**"}])) == {"model.embed", "other.x"}


def test_rename_puts_parts_in_their_places() -> None:
    found = mapped(FILE, [{"rename": "model.layers.*.q.**", "to": "h.*.query.**"}])
    assert found["h.1.query.weight"] is FILE["model.layers.1.q.weight"] and "model.layers.1.q.weight" not in found


@pytest.mark.parametrize("dim", [0, 1])
def test_stack_and_split_undo_each_other(dim: int) -> None:
    names = [f"model.layers.*.{name}.weight" for name in "qk"]
    stacked = mapped(FILE, [{"stack": names, "to": "layers.*.qk", "dim": dim}])
    torch.testing.assert_close(stacked["layers.1.qk"], torch.cat([TWO, ONE], dim))
    assert set(stacked) == {"layers.0.qk", "layers.1.qk", "model.embed", "other.x"}
    back = mapped(stacked, [{"split": "layers.*.qk", "to": names, "dim": dim}])
    assert set(back) == set(FILE)
    for name, value in FILE.items():
        torch.testing.assert_close(back[name], value)


def test_experts_by_number() -> None:
    file = {f"layers.{n}.experts.{k}.up": torch.full((2,), 10.0 * n + k) for k in (10, *range(10)) for n in range(2)}
    found = mapped(file, [{"experts": "layers.*.experts.#.up", "to": "layers.*.up"}])
    assert set(found) == {"layers.0.up", "layers.1.up"}
    assert found["layers.1.up"][:, 0].tolist() == [10.0 + k for k in range(11)]


def test_tie_is_one_tensor_and_transforms() -> None:
    found = mapped(FILE, [{"tie": "model.embed", "to": "head"}, {"transform": "other.x", "by": "transpose"}])
    assert found["head"].data_ptr() == found["model.embed"].data_ptr()
    torch.testing.assert_close(found["other.x"], TWO.T)
    patches = mapped({"conv": torch.arange(24.0).view(2, 3, 2, 2)}, [{"transform": "conv", "by": "flatten"}])
    assert patches["conv"].shape == (2, 12)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"strip": "modle."}, "rule 2 of `weights`, `strip: modle.`: fits no tensor"),
        ({"rename": "model.layers.*.v", "to": "v.*"}, "fits no tensor"),
        (
            {"stack": ["model.layers.*.q.weight", "model.layers.*.v.weight"], "to": "qv.*"},
            "there is no `model.layers.0.v.weight`",
        ),
        (
            {"split": "model.embed", "to": ["a", "b"], "dim": 1},
            "`model.embed` of [2, 3] has no 2 equal parts along dim 1",
        ),
        (
            {"rename": "model.layers.*.q.weight", "to": "*.k"} | {"to": "model.layers.*.k.weight"},
            "there are two tensors",
        ),
        ({"tie": "model.embed", "to": "other.x"}, "there are two tensors `other.x`"),
        ({"experts": "model.layers.#.q.weight", "to": "q"}, ""),
        ({"experts": "deep.#.x", "to": "x"}, "expert 0 of `x` is missing"),
        ({"transform": "flat", "by": "transpose"}, "`flat` is [2]"),
        (
            {"stack": ["flat", "model.embed"], "to": "x"},
            "rule 2 of `weights`, `stack: [flat, model.embed]`: Tensors must",
        ),
        ({"stack": ["flat", "flat"], "to": "x", "dim": 3}, "rule 2 of `weights`, `stack: [flat, flat]`: "),
        ({"experts": "odd.#.x", "to": "x"}, "rule 2 of `weights`, `experts: odd.#.x`: stack expects"),
    ],
)
def test_a_rule_that_does_not_fit_is_named(rule: dict[str, Any], says: str) -> None:
    file = {**FILE, "deep.1.x": ONE, "flat": torch.zeros(2), "odd.0.x": ONE, "odd.1.x": torch.zeros(2)}
    rules = [{"tie": "model.embed", "to": "spare"}, rule]
    if not says:
        assert mapped(file, rules)["q"].shape == (2, 2, 3)
        return
    with pytest.raises(LoadError) as caught:
        mapped(file, rules)
    assert says in str(caught.value)


def test_every_parameter_gets_a_tensor_and_every_tensor_is_used() -> None:
    net = nn.Linear(3, 2, device="meta")
    tensors = {"weight": ONE, "bias": torch.zeros(2)}
    fill(net, tensors, "checkpoint `x`")
    assert net.weight.data_ptr() == ONE.data_ptr(), "without a copy"
    for bad, says in (
        ({"weight": ONE}, "checkpoint `x` lacks `bias`"),
        ({**tensors, "a": ONE, "b": ONE}, "checkpoint `x` does not use `a` and 1 more"),
        ({**tensors, "weight": ONE.T}, "`weight` of checkpoint `x` is [3, 2], not [2, 3]"),
    ):
        with pytest.raises(LoadError) as caught:
            fill(nn.Linear(3, 2, device="meta"), bad, "checkpoint `x`")
        assert str(caught.value) == says
    fill(nn.Linear(3, 2, device="meta"), {**tensors, "rotary.0.freq": ONE}, "x", ["rotary.**"])


class Net:
    """Loads a layer by the rules of its binding."""

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Any, device: str) -> Net:
        made = cls()
        made.layer = nn.Linear(3, 4, bias=False, device="meta")
        fill(made.layer, checkpoint.tensors(), "weights of `n`")
        return made

    layer: nn.Module

    def f(self, x: Any) -> Any:
        return self.layer(x)


def test_from_the_binding_to_the_component(tmp_path: Path) -> None:
    save_file({f"m.{name}.weight": value for name, value in (("q", ONE), ("k", TWO))}, tmp_path / "w.safetensors")
    spec = "model m\nnode n : stateless { op f(x: f32[3]) -> y: f32[4] }\n"
    spec += "walk w(x: f32[3]) { emit n.f(x) as tensor }\nrequest r(x: f32[3]) -> tensor { w(x) }\n"
    binding = f"""
checkpoints: {{w: {{path: {tmp_path}, file: w.safetensors}}}}
components:
  n:
    class: tests.runtime.test_weights.Net
    checkpoint: w
    weights:
      - {{strip: m.}}
      - {{stack: [q.weight, k.weight], to: weight}}
"""
    _, linked = compiled(tmp_path, spec, binding)
    net = load_components(linked, linked.nodes, "cpu")["n"]
    torch.testing.assert_close(net.layer.weight.data, torch.cat([ONE, TWO]))
    wrong = binding.replace("[q.weight, k.weight]", "[q.weight, v.weight]")
    assert wrong != binding
    (tmp_path / "wrong").mkdir()
    _, linked = compiled(tmp_path / "wrong", spec, wrong)
    with pytest.raises(LoadError, match=r"rule 2 of `weights`, `stack: .*`: there is no `v.weight`"):
        load_components(linked, linked.nodes, "cpu")


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("5", "is not a list of rules"),
        ("[{swap: a}]", "has a rule 1 that is not one of strip, drop, rename"),
        ("[{strip: a, drop: b}]", "has a rule 1 that is not one of"),
        ("[{strip: a}, {rename: b}]", "has a rule 2 (`rename`) without `to`"),
        ("[{rename: b, to: c, form: d}]", "with the unknown key `form`"),
        ("[{stack: q, to: c}]", "whose `stack` is no list"),
        ("[{stack: [q], to: c}]", "is not a list of two texts or more"),
        ("[{split: q, to: [a, b], dim: -1}]", "whose `dim` is below 0"),
        ("[{split: q, to: [a, b], dim: x}]", "whose `dim` is no number"),
        ("[{transform: q, by: rotate}]", "whose `by` is not one of transpose, flatten"),
        ("[{rename: 'a.*', to: b}]", "whose names do not have equally many `*`"),
        ("[{rename: 'a.#', to: b}]", "with a `#`, which only `experts` has"),
        ("[{experts: 'a.*', to: 'b.*'}]", "that does not have one `#`, in what it takes"),
    ],
)
def test_rules_that_cannot_be_are_findings(rules: str, says: str) -> None:
    report = Collector()
    text = f"components:\n  n: {{class: a.B, checkpoint: w, weights: {rules}}}\n"
    assert read_binding(SourceFile("m.yaml", text), report) is None
    (found,) = report.findings()
    assert found.rule.code == "MC902" and "`components.n.weights` " in found.message and says in found.message


def test_rules_that_can_be_are_none() -> None:
    report = Collector()
    rules = "[{strip: m.}, {drop: 'r.**'}, {experts: 'l.*.e.#.up', to: 'l.*.up'}, {split: 'l.*.kv', to: ['l.*.k', 'l.*.v'], dim: 1}]"
    assert (
        read_binding(SourceFile("m.yaml", f"components:\n  n: {{class: a.B, weights: {rules}}}\n"), report) is not None
    )
    assert report.findings() == ()
