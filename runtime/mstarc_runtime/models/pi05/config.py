"""Sizes of pi0.5 checkpoints: a LeRobot config.json or a node's YAML section -> frozen records. No torch.

A published config.json carries no layer sizes; they follow from `paligemma_variant` and `action_expert_variant`. A test checkpoint
names others in `tiny_override`. Without a config.json the sizes are those of the node's section, and of lerobot/pi05_base for what
the section leaves out. Keys of a section are those of `config_values`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.config_json import agree, count, number, read_json

_count = partial(count, where="pi0.5")
_number = partial(number, where="pi0.5")

_VARIANTS: Mapping[str, Mapping[str, int]] = {
    "gemma_2b": {"width": 2048, "depth": 18, "mlp_dim": 16384, "num_heads": 8, "num_kv_heads": 1, "head_dim": 256},
    "gemma_300m": {"width": 1024, "depth": 18, "mlp_dim": 4096, "num_heads": 8, "num_kv_heads": 1, "head_dim": 256},
}
_SHARED = ("depth", "num_heads", "num_kv_heads", "head_dim")  # one cache holds the keys of both

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")  # of the published model

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "vit": {
        "image_size": 224, "patch_size": 14, "hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16,
        "intermediate_size": 4304, "layer_norm_eps": 1e-6, "projection_dim": 2048,
    },
    "llm": {
        "vocab_size": 257152, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18,
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
        "expert_hidden_size": 1024, "expert_intermediate_size": 4096, "chunk_size": 50, "max_action_dim": 32,
        "max_state_dim": 32, "min_period": 0.004, "max_period": 4.0, "image_tokens": 256, "image_size": 224,
        "tokenizer_max_length": 200,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The SigLIP tower and its connector: square images of `image_size` pixels in patches of `patch`; rows are `out` wide."""

    width: int
    depth: int
    heads: int
    ffn: int
    image_size: int
    patch: int
    eps: float
    out: int

    def __post_init__(self) -> None:
        if self.image_size % self.patch:
            raise LoadError(f"pi0.5: patches of {self.patch} pixels do not divide an image of {self.image_size}")
        if self.width % self.heads:
            raise LoadError(f"pi0.5: {self.heads} heads do not divide a vision width of {self.width}")

    @property
    def tokens(self) -> int:
        """Rows of one image."""
        return (self.image_size // self.patch) ** 2


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """The language model (`width`, `ffn`) and the action expert, which share layers, heads and the cache.

    `image_tokens` are the rows of one camera, `horizon` the actions of a chunk, `action_dim` the numbers of an action. Embeddings
    of text and image rows are multiplied by `text_scale` and `image_scale`.
    """

    vocab: int
    width: int
    ffn: int
    expert_width: int
    expert_ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    eps: float
    horizon: int
    action_dim: int
    image_tokens: int
    min_period: float
    max_period: float
    text_scale: float
    image_scale: float

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise LoadError(
                f"pi0.5: {self.heads} heads over {self.kv_heads} kv heads of {self.head_dim} numbers; "
                "heads must be a multiple of kv heads and the head size even"
            )
        if self.expert_width % 2:
            raise LoadError(f"pi0.5: `expert_hidden_size` is {self.expert_width}; half of it are sines, so it is even")


@dataclass(frozen=True, slots=True)
class HostConfig:
    """What prompts and camera images are made by, and what actions mean."""

    image_size: int
    max_tokens: int
    max_state: int
    vocab: int
    horizon: int
    robot_actions: int  # numbers of an action that the robot has; the model pads them
    cameras: tuple[str, ...]  # names of the slots, in order


def read_vision(checkpoint: Checkpoint, config: Mapping[str, Any]) -> VisionConfig:
    """The tower of a checkpoint. Raises LoadError naming the key that is wrong or that `config` contradicts."""
    values = vision_values(checkpoint, config)
    agree(values, config, "the pi0.5 checkpoint")
    return VisionConfig(
        width=_count(values, "hidden_size"),
        depth=_count(values, "num_hidden_layers"),
        heads=_count(values, "num_attention_heads"),
        ffn=_count(values, "intermediate_size"),
        image_size=_count(values, "image_size"),
        patch=_count(values, "patch_size"),
        eps=_number(values, "layer_norm_eps"),
        out=_count(values, "projection_dim"),
    )


def read_policy(checkpoint: Checkpoint, config: Mapping[str, Any]) -> PolicyConfig:
    """The language model and the expert. Raises LoadError as `read_vision` does. `config` chooses the two scales."""
    values = policy_values(checkpoint, config)
    agree(values, config, "the pi0.5 checkpoint")
    width = _count(values, "hidden_size")
    return PolicyConfig(
        vocab=_count(values, "vocab_size"),
        width=width,
        ffn=_count(values, "intermediate_size"),
        expert_width=_count(values, "expert_hidden_size"),
        expert_ffn=_count(values, "expert_intermediate_size"),
        layers=_count(values, "num_hidden_layers"),
        heads=_count(values, "num_attention_heads"),
        kv_heads=_count(values, "num_key_value_heads"),
        head_dim=_count(values, "head_dim"),
        rope_theta=_number(values, "rope_theta"),
        eps=_number(values, "rms_norm_eps"),
        horizon=_count(values, "chunk_size"),
        action_dim=_count(values, "max_action_dim"),
        image_tokens=_count(values, "image_tokens"),
        min_period=_number(values, "min_period"),
        max_period=_number(values, "max_period"),
        text_scale=_number({"text_scale": math.sqrt(width), **config}, "text_scale"),
        image_scale=_number({"image_scale": 1.0, **config}, "image_scale"),
    )


def read_host(checkpoint: Checkpoint, config: Mapping[str, Any]) -> HostConfig:
    """What the host needs of the node `llm`. Raises LoadError."""
    values = policy_values(checkpoint, config)
    path = None if checkpoint.path is None else folder_of(checkpoint) / "config.json"
    found = {} if path is None or not path.exists() else read_json(path)
    return HostConfig(
        image_size=_count(values, "image_size"),
        max_tokens=_count(values, "tokenizer_max_length"),
        max_state=_count(values, "max_state_dim"),
        vocab=_count(values, "vocab_size"),
        horizon=_count(values, "chunk_size"),
        robot_actions=_robot_actions(found) or _count(values, "max_action_dim"),
        cameras=_cameras(found) or CAMERAS,
    )


def _cameras(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the image features, in their order."""
    features = _part(found, "input_features")
    return tuple(name for name in features if _part(features, name).get("type") == "VISUAL")


def _robot_actions(found: Mapping[str, Any]) -> int:
    """Numbers of the action feature; 0 if there is none."""
    shape = _part(_part(found, "output_features"), "action").get("shape")
    return shape[0] if isinstance(shape, list) and len(shape) == 1 and isinstance(shape[0], int) else 0


def vision_values(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
    """Config values of the tower's node, and `tokens`, the rows of one image: the checkpoint's, else those of `config`."""
    values = _values(checkpoint, "vit", config)
    return {**values, "tokens": (_count(values, "image_size") // _count(values, "patch_size")) ** 2}


def policy_values(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
    """Config values of the policy's node: the checkpoint's, else those of `config`."""
    return _values(checkpoint, "llm", config)


# ----------------------------------------------------------------------------------------------------------------- reading


def folder_of(checkpoint: Checkpoint) -> Path:
    """The checkpoint's folder; its path may name the weight file in it. Raises LoadError if there is none."""
    if checkpoint.path is None:
        raise LoadError("pi0.5 is bound to no checkpoint")
    if not checkpoint.path.exists():
        raise LoadError(f"{checkpoint.path} does not exist")
    return checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent


def _values(checkpoint: Checkpoint, node: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a node by the precedence of the module's docstring."""
    path = None if checkpoint.path is None else folder_of(checkpoint) / "config.json"
    if path is None or not path.exists():
        published = PUBLISHED[node]
        return {**published, **{key: config[key] for key in published if key in config}}
    found = read_json(path)
    if found.get("type") != "pi05":
        raise LoadError(f"{path}: `type` is {found.get('type')!r}, not 'pi05'")
    return _vision(found) if node == "vit" else _policy(found)


def _vision(found: Mapping[str, Any]) -> dict[str, Any]:
    own = _part(_override(found), "vision")
    if own.get("hidden_act", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise LoadError(
            f"pi0.5: the vision `hidden_act` is {own['hidden_act']!r}; only 'gelu_pytorch_tanh' is supported"
        )
    published = PUBLISHED["vit"]
    values = {**published, **{key: own[key] for key in published if key in own}}
    size = values["image_size"]
    if found.get("image_resolution", [size, size]) != [size, size]:
        raise LoadError(
            f"pi0.5: `image_resolution` is {found['image_resolution']!r}, but the vision tower takes images of {size} x {size}"
        )
    return {**values, "projection_dim": _gemma(found, "paligemma")["width"]}


def _policy(found: Mapping[str, Any]) -> dict[str, Any]:
    language, expert = _gemma(found, "paligemma"), _gemma(found, "action_expert")
    for key in _SHARED:
        if language[key] != expert[key]:
            raise LoadError(
                f"pi0.5: `{key}` is {language[key]} in the language model, {expert[key]} in the expert; they share one cache"
            )
    vision, override = _vision(found), _override(found)
    own = {key: found[key] for key in PUBLISHED["llm"] if key in found}
    own |= {key: override[key] for key in ("vocab_size", "rms_norm_eps", "rope_theta") if key in override}
    return {
        **PUBLISHED["llm"],
        **own,
        "hidden_size": language["width"],
        "intermediate_size": language["mlp_dim"],
        "expert_hidden_size": expert["width"],
        "expert_intermediate_size": expert["mlp_dim"],
        "num_hidden_layers": language["depth"],
        "num_attention_heads": language["num_heads"],
        "num_key_value_heads": language["num_kv_heads"],
        "head_dim": language["head_dim"],
        "image_size": _count(vision, "image_size"),
        "image_tokens": (_count(vision, "image_size") // _count(vision, "patch_size")) ** 2,
    }


def _gemma(found: Mapping[str, Any], half: str) -> Mapping[str, Any]:
    """Sizes of the language model (`paligemma`) or the expert (`action_expert`)."""
    override = _part(_override(found), half)
    variant = found.get(f"{half}_variant")
    if not isinstance(variant, str) or variant not in _VARIANTS:
        raise LoadError(f"pi0.5: `{half}_variant` is {variant!r}, none of {', '.join(_VARIANTS)}")
    sizes = {**_VARIANTS[variant], **override}
    return {key: _count(sizes, key) for key in _VARIANTS[variant]}


def _override(found: Mapping[str, Any]) -> Mapping[str, Any]:
    return _part(found, "tiny_override")


def _part(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = found.get(key, {})
    if not isinstance(part, dict):
        raise LoadError(f"pi0.5: `{key}` is {part!r}, not an object")
    return part
