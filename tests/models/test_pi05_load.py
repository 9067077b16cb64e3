"""Loaders of pi0.5: a named error for everything that is missing, unexpected, misshaped or contradictory; sizes for the linker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML
from safetensors.torch import load_file, save_file
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import PagedPool
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.engines.transformer import TransformerEngine
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.pi05.config import read_host
from mstarc_runtime.models.pi05.flow import flow, geometry, look
from mstarc_runtime.models.pi05.policy import Policy
from mstarc_runtime.models.pi05.vision import Vision
from tests.models.vjepa2_cases import GOLDENS
from tests.shipped import loader

load = loader("pi05")

FOLDER = GOLDENS / "pi05"
SPECS = Path(__file__).parents[2] / "specs"
NONE = Checkpoint()
Loadable = type[Vision] | type[Policy]
Make = Callable[[Tensor], Tensor]

PALIGEMMA = "paligemma_with_expert.paligemma"
TOWER = f"{PALIGEMMA}.model.vision_tower.vision_model"
LANGUAGE = f"{PALIGEMMA}.model.language_model"
EXPERT = "paligemma_with_expert.gemma_expert.model"
HEAD = f"{PALIGEMMA}.lm_head.weight"
EMBED = f"{LANGUAGE}.embed_tokens.weight"


def stored() -> dict[str, Tensor]:
    return load_file(FOLDER / "model.safetensors")


def saved(folder: Path, tensors: dict[str, Tensor]) -> Checkpoint:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    shutil.copy(FOLDER / "config.json", folder)
    return Checkpoint(path=folder)


def reconfigured(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> Checkpoint:
    config = json.loads((FOLDER / "config.json").read_text())
    edit(config)
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(FOLDER / "model.safetensors", folder)
    return Checkpoint(path=folder)


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def golden(component: Loadable) -> Vision | Policy:
    return load(component, Checkpoint(path=FOLDER), {}, "cpu")


# --- tensors

QUERY, KEY = f"{LANGUAGE}.layers.1.self_attn.q_proj.weight", f"{EXPERT}.layers.2.self_attn.k_proj.weight"
WRONG: list[tuple[Loadable, str, Make | None, str]] = [
    (
        Vision,
        f"{TOWER}.encoder.layers.1.self_attn.v_proj.bias",
        None,
        r"layers\.1\.self_attn\.v_proj\.bias` is missing",
    ),
    (
        Vision,
        f"{TOWER}.embeddings.patch_embedding.weight",
        lambda t: t[..., :13],
        r"`patch\.weight` is \[48, 3, 14, 13\], not \[48, 3, 14, 14\]",
    ),
    (
        Vision,
        f"{TOWER}.embeddings.position_embedding.weight",
        lambda t: t[:15],
        r"`position` is \[15, 48\], not \[16, 48\]",
    ),
    (Vision, f"{TOWER}.head.probe", lambda t: t, r"vision_model\.head\.probe` \[1\] of model\.safetensors is not used"),
    (Vision, f"{PALIGEMMA}.model.multi_modal_projector.linear.weight", lambda t: t.long(), r"linear\.weight` is int64"),
    (
        Policy,
        QUERY,
        None,
        r"language_model\.layers\.1\.self_attn\.q_proj\.weight` is missing: rule 16 .* makes `language\.layers\.1\.qkv\.weight`",
    ),
    (
        Policy,
        QUERY,
        lambda t: t[:48],
        r"`language\.layers\.1\.qkv\.weight` is \[80, 64\], not \[96, 64\]: rule 16 .*q_proj\.weight` \[48, 64\]",
    ),
    (
        Policy,
        KEY,
        lambda t: t.repeat(2, 1),
        r"`expert\.layers\.2\.qkv\.weight` is \[112, 32\], not \[96, 32\]: .*k_proj\.weight` \[32, 32\]",
    ),
    (Policy, KEY, lambda t: t.int(), r"k_proj\.weight` is int32"),
    (
        Policy,
        HEAD,
        None,
        r"rule 7 .* fits no tensor: `paligemma_with_expert\.paligemma\.model\.language_model\.embed_tokens\.weight` is not in",
    ),
    (
        Policy,
        f"{EXPERT}.norm.weight",
        lambda t: t,
        r"gemma_expert\.model\.norm\.weight` \[1\] of model\.safetensors is not used",
    ),
    (Policy, f"{EXPERT}.layers.0.input_layernorm.dense.bias", None, r"input_layernorm\.dense\.bias` is missing"),
    (
        Policy,
        f"{EXPERT}.norm.dense.weight",
        lambda t: t[:64],
        r"`expert\.modulation\.weight` is \[640, 32\], not \[672, 32\]: rule 15",
    ),
    (
        Policy,
        f"{LANGUAGE}.layers.3.input_layernorm.weight",
        lambda t: t,
        r"layers\.3\.input_layernorm\.weight` \[1\] of model\.safetensors is not used",
    ),
    (Policy, "state_proj.weight", lambda t: t, r"`state_proj\.weight` \[1\] of model\.safetensors is not used"),
    (
        Policy,
        "time_mlp_out.bias",
        None,
        r"`expert\.time_out\.bias` \[32\] is missing: rule 21 .* `time_mlp_out\.bias`, which .* near it: `time_mlp_in\.bias`",
    ),
    (Policy, "action_out_proj.weight", lambda t: t[:7], r"`expert\.action_out\.weight` is \[7, 32\], not \[8, 32\]"),
]


@pytest.mark.parametrize(("component", "key", "make", "message"), WRONG)
def test_a_wrong_tensor_is_named(
    tmp_path: Path, component: Loadable, key: str, make: Make | None, message: str
) -> None:
    tensors = stored()
    old = tensors.pop(key, torch.zeros(1))
    if make is not None:
        tensors[key] = make(old)
    with pytest.raises(LoadError, match=message):
        load(component, saved(tmp_path, tensors), {}, "cpu")


def test_the_other_net_is_not_read(tmp_path: Path) -> None:
    tensors = stored()
    del tensors[QUERY]
    checkpoint = saved(tmp_path, tensors)
    assert same(load(Vision, checkpoint, {}, "cpu").net, golden(Vision).net)
    with pytest.raises(LoadError, match="is missing"):
        load(Policy, checkpoint, {}, "cpu")


@pytest.mark.parametrize("component", [Vision, Policy])
def test_keys_may_begin_with_model(tmp_path: Path, component: Loadable) -> None:
    tensors = stored()
    checkpoint = saved(tmp_path, {f"model.{name}": tensor for name, tensor in tensors.items()})
    assert same(load(component, checkpoint, {}, "cpu").net, golden(component).net)
    checkpoint = saved(tmp_path, tensors | {f"model.{name}": tensor.clone() for name, tensor in tensors.items()})
    with pytest.raises(LoadError, match="there are two tensors `"):
        load(component, checkpoint, {}, "cpu")


def test_text_embeddings_under_either_name(tmp_path: Path) -> None:
    tensors = stored()
    both = saved(tmp_path, tensors | {EMBED: tensors[HEAD].clone()})
    assert same(load(Policy, both, {}, "cpu").net, golden(Policy).net)
    other = saved(tmp_path, tensors | {EMBED: tensors[HEAD] + 1})
    with pytest.raises(LoadError, match="they are tied"):
        load(Policy, other, {}, "cpu")
    tensors[EMBED] = tensors.pop(HEAD)
    del tensors["paligemma_with_expert.gemma_expert.lm_head.weight"]  # never used: may be left out
    assert same(load(Policy, saved(tmp_path, tensors), {}, "cpu").net, golden(Policy).net)


def test_sharded_folder_and_single_file(tmp_path: Path) -> None:
    tensors = stored()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, mine in parts.items():
        save_file({name: tensors[name] for name in mine}, tmp_path / file)
    index = {"weight_map": {name: file for file, mine in parts.items() for name in mine}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copy(FOLDER / "config.json", tmp_path)
    for component in (Vision, Policy):
        assert same(load(component, Checkpoint(path=tmp_path), {}, "cpu").net, golden(component).net)
        whole = load(component, Checkpoint(path=FOLDER / "model.safetensors"), {}, "cpu")
        assert same(whole.net, golden(component).net)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(LoadError, match=r"b\.safetensors cannot be read"):
        load(Policy, Checkpoint(path=tmp_path), {}, "cpu")


def test_folders_that_hold_no_weights(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="does not exist"):
        load(Policy, Checkpoint(path=tmp_path / "nowhere"), {}, "cpu")
    shutil.copy(FOLDER / "config.json", tmp_path)
    with pytest.raises(LoadError, match=r"has neither model\.safetensors nor pytorch_model\.bin"):
        load(Policy, Checkpoint(path=tmp_path), {}, "cpu")
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(LoadError, match=r"model\.safetensors cannot be read"):
        load(Vision, Checkpoint(path=tmp_path), {}, "cpu")


# --- config


def tiny(part: str, **values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda config: config["tiny_override"][part].update(values)


@pytest.mark.parametrize(
    ("component", "edit", "message"),
    [
        (Policy, lambda c: c.update(type="pi0"), "`type` is 'pi0', not 'pi05'"),
        (
            Policy,
            lambda c: c.update(paligemma_variant="gemma_9b"),
            "`paligemma_variant` is 'gemma_9b', none of gemma_2b",
        ),
        (Policy, lambda c: c.pop("action_expert_variant"), "`action_expert_variant` is None"),
        (Policy, lambda c: c.update(chunk_size="ten"), "`chunk_size` is 'ten', not a positive count"),
        (Policy, lambda c: c.update(min_period=0), "`min_period` is 0, not a positive number"),
        (Policy, lambda c: c.update(tiny_override=[]), r"`tiny_override` is \[\], not an object"),
        (
            Policy,
            tiny("action_expert", depth=2),
            "`depth` is 3 in the language model, 2 in the expert; they share one cache",
        ),
        (Policy, tiny("action_expert", head_dim=8), "`head_dim` is 16 in the language model, 8 in the expert"),
        (Policy, tiny("paligemma", width=True), "`width` is True, not a positive count"),
        (
            Vision,
            lambda c: c.update(image_resolution=[64, 56]),
            r"`image_resolution` is \[64, 56\], but the vision tower",
        ),
        (Vision, tiny("vision", hidden_act="relu"), "`hidden_act` is 'relu'"),
        (Vision, tiny("vision", patch_size=15), "patches of 15 pixels do not divide an image of 56"),
        (Vision, tiny("vision", num_attention_heads=5), "5 heads do not divide a vision width of 48"),
    ],
)
def test_a_wrong_config_is_named(
    tmp_path: Path, component: Loadable, edit: Callable[[dict[str, Any]], Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load(component, reconfigured(tmp_path, edit), {}, "cpu")


def test_binding_may_repeat_but_not_contradict() -> None:
    checkpoint = Checkpoint(path=FOLDER)
    load(Policy, checkpoint, {"hidden_size": 64, "text_scale": 8.0}, "cpu")
    for component, key, value, known in (
        (Policy, "chunk_size", 50, 10), (Policy, "image_tokens", 256, 16), (Vision, "tokens", 256, 16), (Vision, "image_size", 224, 56)
    ):  # fmt: skip
        with pytest.raises(LoadError, match=f"`{key}` is {value} in the binding, {known} in"):
            load(component, checkpoint, {key: value}, "cpu")
    for component in (Vision, Policy):
        with pytest.raises(LoadError, match="dtype `int8` is none of"):
            load(component, checkpoint, {"dtype": "int8"}, "cpu")
    with pytest.raises(LoadError, match="`text_scale` is 'big'"):
        load(Policy, checkpoint, {"text_scale": "big"}, "cpu")


def test_shipped_binding_has_the_published_sizes() -> None:
    """specs/pi05.yaml and the sizes that follow from the published config.json are the same numbers under the same names."""
    shipped = YAML(typ="safe").load((SPECS / "pi05.yaml").read_text())["config"]
    for node, values in (("vit", Vision.config_values(NONE, {})), ("llm", Policy.config_values(NONE, {}))):
        scales = {"text_scale", "image_scale"}
        assert {key: value for key, value in shipped[node].items() if key not in scales}.items() <= values.items()
    facts = read_host(NONE, {})
    assert (
        facts.max_tokens == shipped["llm"]["tokenizer_max_length"] and facts.image_size == shipped["vit"]["image_size"]
    )


def test_published_config_gives_the_published_sizes(tmp_path: Path) -> None:
    checkpoint = reconfigured(
        tmp_path,
        lambda c: (
            c.pop("tiny_override"),
            c.update(
                image_resolution=[224, 224],
                chunk_size=50,
                max_action_dim=32,
                max_state_dim=32,
                tokenizer_max_length=200,
            ),
        ),
    )
    assert Policy.config_values(checkpoint, {}) == Policy.config_values(NONE, {})
    assert Vision.config_values(checkpoint, {}) == Vision.config_values(NONE, {})


# --- no checkpoint


def test_random_weights_of_given_sizes() -> None:
    """What measurements run on: sizes from the binding, the same weights for the same seed, and a flow that works."""
    vit = {"image_size": 28, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
           "projection_dim": 32}  # fmt: skip
    llm = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
           "head_dim": 8, "expert_hidden_size": 16, "expert_intermediate_size": 24, "chunk_size": 5, "max_action_dim": 3,
           "image_tokens": 4}  # fmt: skip
    vision, policy = load(Vision, NONE, vit, "cpu"), load(Policy, NONE, llm, "cpu")
    assert same(policy.net, load(Policy, NONE, llm, "cpu").net)
    assert not same(policy.net, load(Policy, NONE, {**llm, "seed": 1}, "cpu").net)
    engine = TransformerEngine(PagedPool.from_bytes(geometry(policy.config), 1 << 20))
    seen = vision.encode(torch.rand(2, 3, 28, 28, generator=torch.Generator().manual_seed(0)))
    assert seen.shape == (8, 32) and seen.std() > 1e-4
    contexts: list[Context] = look(engine, policy, [(seen, torch.arange(3))])
    actions, path = flow(engine, policy, contexts, torch.ones(1, 5, 3), 2)
    assert actions.shape == (1, 5, 3) and actions.isfinite().all() and all(v.abs().max() > 0 for v in path)
