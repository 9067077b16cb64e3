"""Sizes of V-JEPA 2 checkpoints: a config.json or a node's YAML section -> frozen records. No torch.

V-JEPA 2 is the HF folder (model_type "vjepa2"). V-JEPA 2-AC's original checkpoint has no config file: its sizes are the
constructor arguments of the two modules, here from a config.json beside the weights ({"encoder": …, "predictor": …}), else from the
node's section of the YAML, else those of the published model (ViT-g encoder at 256 px, 24-layer predictor).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.config_json import agree, count, flag, number, read_json

_count = partial(count, where="V-JEPA 2")
_number = partial(number, where="V-JEPA 2")
_flag = partial(flag, where="V-JEPA 2")

NORM_EPS = 1e-6  # of every affine norm of the AC modules; their constructor takes no other
REPR_EPS = 1e-5  # of the norm without affine that encoder features and predicted frames pass

PUBLISHED_AC: Mapping[str, Mapping[str, Any]] = {
    "encoder": {
        "img_size": 256, "patch_size": 16, "tubelet_size": 2, "in_chans": 3, "embed_dim": 1408, "depth": 40, "num_heads": 22,
        "mlp_ratio": 48 / 11, "use_rope": True, "qkv_bias": True,
    },
    "predictor": {
        "img_size": 256, "patch_size": 16, "embed_dim": 1408, "predictor_embed_dim": 1024, "depth": 24, "num_heads": 16,
        "action_embed_dim": 7, "use_extrinsics": False, "is_frame_causal": True, "mlp_ratio": 4, "qkv_bias": True,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack of transformer blocks. `ffn` is the width inside the feed-forward."""

    width: int
    depth: int
    heads: int
    ffn: int
    qkv_bias: bool
    eps: float

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise LoadError(f"V-JEPA 2: {self.heads} heads do not divide a width of {self.width}")
        if self.head_dim % 2 or self.head_dim < 6:
            raise LoadError(
                f"V-JEPA 2: head_dim is {self.head_dim}; rotary positions over three axes need an even one of 6 or more"
            )

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The video encoder: frames of `size` x `size` pixels, `tubelet` frames and `patch` x `patch` pixels a token."""

    stack: Stack
    size: int
    patch: int
    tubelet: int
    channels: int

    @property
    def grid(self) -> int:
        return self.size // self.patch

    @property
    def tokens_per_frame(self) -> int:
        return self.grid**2


@dataclass(frozen=True, slots=True)
class MaskedConfig:
    """The masked predictor; `embed_dim` is the encoder's width, `grid` its rows of tokens a frame."""

    stack: Stack
    embed_dim: int
    grid: int
    tubelet: int
    mask_tokens: int

    @property
    def tokens_per_frame(self) -> int:
        return self.grid**2


@dataclass(frozen=True, slots=True)
class AcConfig:
    """The action-conditioned predictor; `action_dim` numbers an action and a pose."""

    stack: Stack
    embed_dim: int
    grid: int
    action_dim: int

    @property
    def tokens_per_frame(self) -> int:
        """Tokens of an encoded frame."""
        return self.grid**2

    @property
    def rows(self) -> int:
        """Rows that a frame takes in the predictor: action, pose and the frame's tokens."""
        return self.tokens_per_frame + 2


# ---------------------------------------------------------------------------------------------------------------- V-JEPA 2


def read_encoder(checkpoint: Checkpoint, config: Mapping[str, Any]) -> EncoderConfig:
    """The encoder of a HF folder. Raises LoadError naming the key that is wrong or that `config` contradicts."""
    values = _hf_values(checkpoint, config)
    size, patch = _count(values, "crop_size"), _count(values, "patch_size")
    return EncoderConfig(
        _hf_stack(values, "hidden_size", ("num_hidden_layers", "num_attention_heads", "mlp_ratio")),
        _gridded(size, patch),
        patch,
        _count(values, "tubelet_size"),
        _count(values, "in_chans"),
    )


def read_frames(checkpoint: Checkpoint) -> int:
    """How many frames of a video a HF folder's model was trained on. Raises LoadError."""
    return _count(_hf_values(checkpoint, {}), "frames_per_clip")


def read_masked(checkpoint: Checkpoint, config: Mapping[str, Any]) -> MaskedConfig:
    """The masked predictor of a HF folder. Raises LoadError as `read_encoder` does."""
    values = _hf_values(checkpoint, config)
    patch = _count(values, "patch_size")
    return MaskedConfig(
        _hf_stack(values, "pred_hidden_size", ("pred_num_hidden_layers", "pred_num_attention_heads", "pred_mlp_ratio")),
        _count(values, "hidden_size"),
        _gridded(_count(values, "crop_size"), patch) // patch,
        _count(values, "tubelet_size"),
        _count(values, "pred_num_mask_tokens"),
    )


def own_section(checkpoint: Checkpoint, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a checkpoint leaves to the node's section: all of it if there is no config.json, else nothing. Raises LoadError."""
    return {} if (folder_of(checkpoint) / "config.json").exists() else config


def _hf_values(checkpoint: Checkpoint, config: Mapping[str, Any]) -> Mapping[str, Any]:
    values = read_json(folder_of(checkpoint) / "config.json")
    if values.get("model_type") != "vjepa2":
        raise LoadError(f"config.json: model_type is {values.get('model_type')!r}, not 'vjepa2'")
    if values.get("hidden_act") != "gelu":
        raise LoadError(f"config.json: hidden_act is {values.get('hidden_act')!r}; V-JEPA 2 is read with 'gelu' only")
    agree(values, config, "the V-JEPA 2 checkpoint")
    return values


def _hf_stack(values: Mapping[str, Any], width_key: str, keys: tuple[str, str, str]) -> Stack:
    width = _count(values, width_key)
    return Stack(
        width,
        _count(values, keys[0]),
        _count(values, keys[1]),
        int(width * _number(values, keys[2])),
        _flag(values, "qkv_bias"),
        _number(values, "layer_norm_eps"),
    )


# ------------------------------------------------------------------------------------------------------------- V-JEPA 2-AC


def read_ac_encoder(checkpoint: Checkpoint, config: Mapping[str, Any]) -> EncoderConfig:
    """The encoder of an AC checkpoint. Raises LoadError naming the key that is wrong or that `config` contradicts."""
    values = _ac_values(checkpoint, "encoder", config)
    _only(values, "use_rope", True)
    size, patch = _count(values, "img_size"), _count(values, "patch_size")
    return EncoderConfig(
        _ac_stack(values, "embed_dim"),
        _gridded(size, patch),
        patch,
        _count(values, "tubelet_size"),
        _count(values, "in_chans"),
    )


def read_ac_predictor(checkpoint: Checkpoint, config: Mapping[str, Any]) -> AcConfig:
    """The predictor of an AC checkpoint. Raises LoadError as `read_ac_encoder` does."""
    values = _ac_values(checkpoint, "predictor", config)
    _only(values, "use_extrinsics", False)  # a third row per frame, of a camera pose
    _only(values, "is_frame_causal", True)  # else a frame sees later ones and nothing can be cached
    patch = _count(values, "patch_size")
    return AcConfig(
        _ac_stack(values, "predictor_embed_dim"),
        _count(values, "embed_dim"),
        _gridded(_count(values, "img_size"), patch) // patch,
        _count(values, "action_embed_dim"),
    )


def _ac_values(checkpoint: Checkpoint, half: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Constructor arguments of a half, by the precedence of the module's docstring."""
    beside = folder_of(checkpoint) / "config.json"
    if not beside.exists():
        return {**PUBLISHED_AC[half], **{key: config[key] for key in PUBLISHED_AC[half] if key in config}}
    found = read_json(beside)
    if found.get("model_type") != "vjepa2_ac":
        raise LoadError(f"{beside}: model_type is {found.get('model_type')!r}, not 'vjepa2_ac'")
    values = found.get(half)
    if not isinstance(values, dict):
        raise LoadError(f"{beside}: `{half}` is missing")
    agree(values, config, "the V-JEPA 2-AC checkpoint")
    return values


def _ac_stack(values: Mapping[str, Any], width_key: str) -> Stack:
    width = _count(values, width_key)
    return Stack(
        width,
        _count(values, "depth"),
        _count(values, "num_heads"),
        int(width * _number(values, "mlp_ratio")),
        _flag(values, "qkv_bias"),
        NORM_EPS,
    )


# ------------------------------------------------------------------------------------------------------------------ values


def folder_of(checkpoint: Checkpoint) -> Path:
    """The checkpoint's folder; its path may name the weight file in it. Raises LoadError if there is none."""
    if checkpoint.path is None:
        raise LoadError("V-JEPA 2 needs a checkpoint: a HF folder, or the weight file of V-JEPA 2-AC")
    if not checkpoint.path.exists():
        raise LoadError(f"{checkpoint.path} does not exist")
    return checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent


def _only(values: Mapping[str, Any], key: str, wanted: bool) -> None:
    if _flag(values, key) is not wanted:
        raise LoadError(f"V-JEPA 2-AC: `{key}` is {values[key]!r}; only {wanted!r} is supported")


def _gridded(size: int, patch: int) -> int:
    if size % patch:
        raise LoadError(f"V-JEPA 2: patches of {patch} pixels do not divide an image of {size}")
    return size
