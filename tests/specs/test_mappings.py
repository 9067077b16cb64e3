"""The rules of bindings whose components are still to come, on the names and shapes of tiny checkpoints in the published layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mstarc_runtime.weights import Weight, Weights, mapped, weight
from mstarc_runtime.weights.names import alike
from tests.shipped import rules_of

HEADERS = Path(__file__).parents[1] / "goldens" / "headers"
NODES = {"bagel": ("vit", "llm"), "qwen3_omni": ("ear", "eye", "thinker", "talker", "vocoder")}


def header(model: str) -> dict[str, Weight]:
    """Tensors of zeros."""
    shapes: dict[str, list[int]] = json.loads((HEADERS / f"{model}.json").read_text())
    return {
        name: weight(name, shape, "bfloat16", "model.safetensors", lambda shape=shape: torch.zeros(shape))  # type: ignore[misc]
        for name, shape in shapes.items()
    }


def of_node(model: str, node: str) -> Weights:
    return mapped(header(model), rules_of(model)[node])


@pytest.mark.parametrize("model", NODES)
def test_every_tensor_is_of_one_component_and_every_rule_fits(model: str) -> None:
    owners: dict[str, list[str]] = {name: [] for name in header(model)}
    for node in NODES[model]:
        weights = of_node(model, node)
        assert weights.misfits == (), node
        for each in weights.tensors.values():
            for part in each.parts:
                owners[part.name].append(node)
    assert {name: nodes for name, nodes in owners.items() if len(nodes) != 1} == {}


@pytest.mark.parametrize(("model", "node"), [(model, node) for model, nodes in NODES.items() for node in nodes])
def test_each_layer_has_the_same_names_and_no_stored_name_is_left(model: str, node: str) -> None:
    """But for the convolutions of the vocoder, which keep theirs."""
    weights = of_node(model, node)
    layers: dict[str, set[str]] = {}
    for name in weights.tensors:
        where, _, rest = name.partition("layers.")
        if rest and not where.endswith(("decoder.", "upsample.")):
            number, _, part = rest.partition(".")
            layers.setdefault(f"{where}{number}", set()).add(part)
    stacks: dict[str, list[set[str]]] = {}
    for key, parts in layers.items():
        stacks.setdefault(alike(key.rstrip("0123456789")), []).append(parts)
    assert all(parts == members[0] for members in stacks.values() for parts in members)
    old = ("self_attn", "_proj.", "_moe_gen", "layernorm", "mlp.", "lm_head", "embed_tokens")
    assert [name for name in weights.tensors if any(word in name for word in old)] == []


@pytest.mark.parametrize(
    ("model", "node", "name", "shape"),
    [
        ("bagel", "vit", "blocks.1.qkv.bias", (96,)),
        ("bagel", "llm", "layers.2.text.qkv.weight", (128, 64)),
        ("bagel", "llm", "layers.2.gen.qkv.bias", (128,)),
        ("bagel", "llm", "layers.0.gen.gate_up.weight", (192, 64)),
        ("bagel", "llm", "layers.0.gen.k_norm", (16,)),
        ("qwen3_omni", "ear", "layers.1.qkv.bias", (96,)),
        ("qwen3_omni", "eye", "patch.weight", (32, 3 * 2 * 16 * 16)),
        ("qwen3_omni", "eye", "deepstack.2.fc2.weight", (64, 128)),
        ("qwen3_omni", "thinker", "layers.4.experts.gate_up", (8, 64, 64)),
        ("qwen3_omni", "thinker", "layers.4.experts.down", (8, 64, 32)),
        ("qwen3_omni", "talker", "talk.layers.3.experts.gate_up", (8, 40, 48)),
        ("qwen3_omni", "talker", "talk.layers.3.shared.gate_up.weight", (56, 48)),
        ("qwen3_omni", "talker", "predict.heads", (15, 64, 48)),
        ("qwen3_omni", "talker", "predict.layers.1.qkv.weight", (96, 48)),
        ("qwen3_omni", "vocoder", "layers.0.gate_up.weight", (96, 32)),
    ],
)
def test_shapes_of_what_is_fused(model: str, node: str, name: str, shape: tuple[int, ...]) -> None:
    found: Any = of_node(model, node).tensors[name]
    assert found.shape == shape and tuple(found.read().shape) == shape
