"""Loaders of V-JEPA 2: both layouts, and a named error for everything that is missing, unexpected, misshaped or contradictory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.vjepa2.components import Critic, Encoder, FrameEncoder, MaskedPredictor, Predictor
from mstarc_runtime.models.vjepa2.config import Stack, read_ac_encoder, read_ac_predictor
from tests.models.vjepa2_cases import GOLDENS
from tests.shipped import loader

load = loader("vjepa2", "vjepa2_ac")

HF, AC = GOLDENS / "vjepa2", GOLDENS / "vjepa2_ac"
Loadable = type[Encoder] | type[MaskedPredictor] | type[FrameEncoder] | type[Predictor]
Edit = Callable[[dict[str, Tensor]], None]


def change(key: str, make: Callable[[Tensor], Tensor] | None) -> Edit:
    """Replace a tensor by what `make` makes of it, or take it out."""

    def edit(tensors: dict[str, Tensor]) -> None:
        old = tensors.pop(key, torch.zeros(1))
        if make is not None:
            tensors[key] = make(old).contiguous()

    return edit


def edited(source: Path, name: str, folder: Path, edit: Edit) -> Checkpoint:
    """A copy of a checkpoint whose tensors were edited."""
    tensors = load_file(source / name)
    edit(tensors)
    save_file(tensors, folder / name)
    shutil.copy(source / "config.json", folder)
    return Checkpoint(path=folder)


def reconfigured(source: Path, name: str, folder: Path, edit: Callable[[dict[str, Any]], None]) -> Checkpoint:
    """A copy of a checkpoint whose config.json was edited."""
    config = json.loads((source / "config.json").read_text())
    edit(config)
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(source / name, folder)
    return Checkpoint(path=folder)


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


# --- tensors

QUERY = "encoder.layer.1.attention.query.weight"
QKV = "predictor/module.predictor_blocks.2.attn.qkv.weight"
WRONG: list[tuple[Loadable, str, Callable[[Tensor], Tensor] | None, str]] = [
    (
        Encoder,
        QUERY,
        None,
        r"`encoder\.layer\.1\.attention\.query\.weight` is missing: rule 6 .*`blocks\.1\.qkv\.weight`.*near it: `encoder\.layer",
    ),
    (
        Encoder,
        QUERY,
        lambda t: t[:32],
        r"`blocks\.1\.qkv\.weight` is \[160, 64\], not \[192, 64\]: rule 6 .* of `encoder\.layer\.1\.attention\.query\.weight` \[32, 64\]",
    ),
    (Encoder, QUERY, lambda t: t.long(), r"`encoder\.layer\.1\.attention\.query\.weight` is int64"),
    (
        Encoder,
        "encoder.layer.3.norm1.bias",
        lambda t: t,
        r"`encoder\.layer\.3\.norm1\.bias` \[1\] of model\.safetensors is not used",
    ),
    (Encoder, "classifier.weight", lambda t: t, r"`classifier\.weight` \[1\] of model\.safetensors is not used"),
    (
        MaskedPredictor,
        "predictor.embeddings.mask_tokens",
        None,
        r"rule 4 .* fits no tensor: `predictor\.embeddings\.mask_tokens` is not in",
    ),
    (
        MaskedPredictor,
        "predictor.embeddings.mask_tokens",
        lambda t: t[0],
        r"`mask_tokens` is \[1, 1, 32\], not \[3, 1, 1, 32\]",
    ),
    (
        FrameEncoder,
        "encoder/module.backbone.patch_embed.proj.bias",
        None,
        r"`patch\.bias` \[88\] is missing: rule 5 .* `encoder/module\.backbone\.patch_embed\.proj\.bias`",
    ),
    (
        FrameEncoder,
        "encoder/pos_embed",
        lambda t: t,
        r"`encoder/pos_embed` \[1\] of vjepa2_ac\.safetensors is not used",
    ),
    (
        FrameEncoder,
        "encoder/norm.bias",
        lambda t: t,
        r"two tensors `norm\.bias`, of `encoder/norm\.bias` \[1\] and of `encoder/module\.backbone\.norm\.bias` \[88\]",
    ),
    (
        Predictor,
        QKV,
        None,
        r"`blocks\.2\.qkv\.weight` .* is missing: rule 12 .* `predictor/module\.predictor_blocks\.2\.attn\.qkv\.weight`, which",
    ),
    (Predictor, QKV, lambda t: t[:-1], r"is \[191, 64\], not \[192, 64\]"),
    (
        Predictor,
        "predictor/module.extra.weight",
        lambda t: t,
        r"`predictor/module\.extra\.weight` \[1\] of vjepa2_ac\.safetensors is not used",
    ),
    (Predictor, "head.weight", lambda t: t, r"`head\.weight` \[1\] of vjepa2_ac\.safetensors is not used"),
]


@pytest.mark.parametrize(("component", "key", "make", "message"), WRONG)
def test_a_wrong_tensor_is_named(
    tmp_path: Path, component: Loadable, key: str, make: Callable[[Tensor], Tensor] | None, message: str
) -> None:
    source, name = HF, "model.safetensors"
    if component in (FrameEncoder, Predictor):
        source, name = AC, "vjepa2_ac.safetensors"
    with pytest.raises(LoadError, match=message):
        load(component, edited(source, name, tmp_path, change(key, make)), {}, "cpu")


def test_the_other_half_is_not_read(tmp_path: Path) -> None:
    checkpoint = edited(HF, "model.safetensors", tmp_path, change("predictor.proj.bias", None))
    load(Encoder, checkpoint, {}, "cpu")
    with pytest.raises(LoadError, match=r"`predictor\.proj\.bias`, which model\.safetensors does not have"):
        load(MaskedPredictor, checkpoint, {}, "cpu")


def test_sharded_folder(tmp_path: Path) -> None:
    tensors = load_file(HF / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, mine in parts.items():
        save_file({name: tensors[name] for name in mine}, tmp_path / file)
    index = {"weight_map": {name: file for file, mine in parts.items() for name in mine}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copy(HF / "config.json", tmp_path)
    for component in (Encoder, MaskedPredictor):
        whole = load(component, Checkpoint(path=HF), {}, "cpu")
        assert same(load(component, Checkpoint(path=tmp_path), {}, "cpu").net, whole.net)


# --- the original file of V-JEPA 2-AC


def original(path: Path, **more: Any) -> Checkpoint:
    """The `.pt` layout: state dicts by half, with whatever else the training stored."""
    halves: dict[str, Any] = {"encoder": {}, "predictor": {}, "epoch": 3, "opt": {"lr": 0.1}}
    for key, tensor in load_file(AC / "vjepa2_ac.safetensors").items():
        half, _, name = key.partition("/")
        halves[half][name] = tensor
    torch.save(halves | more, path)
    return Checkpoint(path=path)


def test_original_file_equals_safetensors(tmp_path: Path) -> None:
    """Without a config.json: sizes come from the node's section of the binding."""
    checkpoint = original(tmp_path / "vjepa2-ac-vitg.pt")
    config = json.loads((AC / "config.json").read_text())
    for component, half in ((FrameEncoder, "encoder"), (Predictor, "predictor")):
        known = load(component, Checkpoint(path=AC), {}, "cpu")
        got = load(component, checkpoint, config[half], "cpu")
        assert same(got.net, known.net) and got.config == known.config
    folder = load(FrameEncoder, Checkpoint(path=tmp_path), config["encoder"], "cpu")
    assert same(folder.net, load(FrameEncoder, Checkpoint(path=AC), {}, "cpu").net)


def test_original_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"rule 2 .* fits no tensor: `predictor/` is not in a\.pt"):
        load(Predictor, original(tmp_path / "a.pt", predictor=None), {}, "cpu")
    with pytest.raises(LoadError, match=r"rule 2 .* fits no tensor: `encoder/` is not in b\.pt"):
        load(FrameEncoder, original(tmp_path / "b.pt", encoder={"step": 1}), {}, "cpu")
    broken = tmp_path / "c.pt"
    broken.write_bytes(b"no zip file")
    with pytest.raises(LoadError, match=r"c\.pt cannot be read"):
        load(Predictor, Checkpoint(path=broken), {}, "cpu")
    (tmp_path / "d").mkdir()
    with pytest.raises(LoadError, match=r"has neither vjepa2_ac\.safetensors nor vjepa2-ac-vitg\.pt"):
        load(Predictor, Checkpoint(path=tmp_path / "d"), {}, "cpu")
    with pytest.raises(LoadError, match="needs a checkpoint"):
        load(Predictor, Checkpoint(), {}, "cpu")


def test_published_sizes_are_the_default(tmp_path: Path) -> None:
    checkpoint = Checkpoint(path=tmp_path)
    encoder, predictor = read_ac_encoder(checkpoint, {}), read_ac_predictor(checkpoint, {})
    assert (encoder.stack.ffn, encoder.stack.head_dim, encoder.tokens_per_frame) == (6144, 64, 256)
    assert (predictor.stack.ffn, predictor.stack.head_dim, predictor.rows, predictor.embed_dim) == (4096, 64, 258, 1408)


# --- sharing


def test_critic_shares_the_predictors_weights() -> None:
    predictor = load(Predictor, Checkpoint(path=AC), {})
    assert Critic.share(predictor, {}, "cpu").net is predictor.net


# --- config


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.update(model_type="vit"), "model_type is 'vit'"),
        (lambda c: c.update(hidden_act="relu"), "hidden_act is 'relu'"),
        (lambda c: c.pop("num_hidden_layers"), "`num_hidden_layers` is None"),
        (lambda c: c.update(mlp_ratio="4"), "`mlp_ratio` is '4'"),
        (lambda c: c.update(qkv_bias=1), "`qkv_bias` is 1"),
        (lambda c: c.update(num_attention_heads=5), "5 heads do not divide"),
        (lambda c: c.update(num_attention_heads=64), "head_dim is 1"),
        (lambda c: c.update(crop_size=65), "do not divide an image of 65"),
    ],
)
def test_wrong_config_of_a_folder_is_named(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load(Encoder, reconfigured(HF, "model.safetensors", tmp_path, edit), {}, "cpu")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.pop("predictor"), "`predictor` is missing"),
        (lambda c: c["predictor"].update(use_extrinsics=True), "`use_extrinsics` is True; only False"),
        (lambda c: c["predictor"].update(is_frame_causal=False), "`is_frame_causal` is False; only True"),
        (lambda c: c.update(model_type="vjepa2"), "not 'vjepa2_ac'"),
    ],
)
def test_wrong_config_of_ac_is_named(tmp_path: Path, edit: Callable[[dict[str, Any]], None], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        load(Predictor, reconfigured(AC, "vjepa2_ac.safetensors", tmp_path, edit), {}, "cpu")


def test_binding_may_repeat_but_not_contradict() -> None:
    load(Encoder, Checkpoint(path=HF), {"hidden_size": 64}, "cpu")
    with pytest.raises(LoadError, match="`hidden_size` is 65 in the binding, 64 in the V-JEPA 2 checkpoint"):
        load(Encoder, Checkpoint(path=HF), {"hidden_size": 65}, "cpu")
    with pytest.raises(LoadError, match="`depth` is 4 in the binding, 3 in the V-JEPA 2-AC checkpoint"):
        load(Predictor, Checkpoint(path=AC), {"depth": 4}, "cpu")
    with pytest.raises(LoadError, match="dtype `int8` is none of"):
        load(Predictor, Checkpoint(path=AC), {"dtype": "int8"}, "cpu")


def test_config_values_for_the_linker() -> None:
    assert FrameEncoder.config_values(Checkpoint(path=AC), {})["embed_dim"] == 88
    values = Predictor.config_values(Checkpoint(path=AC), {})
    assert {key: values[key] for key in ("tokens_per_frame", "layers", "heads", "head_dim")} == {
        "tokens_per_frame": 16, "layers": 3, "heads": 4, "head_dim": 16
    }  # fmt: skip


def test_weights_without_qkv_bias(tmp_path: Path) -> None:
    """`qkv_bias` false: the stored biases are then unexpected, and a checkpoint without them loads."""
    kept = {
        k: v
        for k, v in load_file(HF / "model.safetensors").items()
        if ".attention." not in k or "proj" in k or k.endswith("weight")
    }
    save_file(kept, tmp_path / "model.safetensors")
    config = json.loads((HF / "config.json").read_text()) | {"qkv_bias": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load(Encoder, Checkpoint(path=tmp_path), {}, "cpu").config.stack == Stack(64, 3, 4, 256, False, 1e-6)
