"""The facts of a Llama checkpoint: sizes, RoPE and special ids, from GGUF metadata, a HF `config.json` or a plain mapping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.config_json import read_json
from mstarc_runtime.models.gguf_file import GgufFile


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """RoPE scaling of Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, a ramp in between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Names as in HF's config.json. `eos_token_id` is the first if the checkpoint lists several; -1 = none."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = True
    bos_token_id: int = -1
    eos_token_id: int = -1
    rope_scaling: Llama3Scaling | None = None

    def __post_init__(self) -> None:
        sizes = (
            self.vocab_size,
            self.hidden_size,
            self.intermediate_size,
            self.num_hidden_layers,
            self.num_attention_heads,
        )
        if min(*sizes, self.num_key_value_heads, self.head_dim) < 1 or self.head_dim % 2:
            raise LoadError(f"Llama sizes must be positive and head_dim even: {self}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise LoadError(f"{self.num_attention_heads} heads do not share {self.num_key_value_heads} KV heads evenly")

    def values(self) -> dict[str, Any]:
        """The facts as the values that a spec's `config { x = node.key }` names."""
        return asdict(self)

    def inverse_frequencies(self) -> Tensor:
        """RoPE frequencies in radians per position, f32 [head_dim / 2]: theta^(-2i/head_dim), scaled as Llama 3.1 does."""
        exponent = torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim
        frequencies = 1.0 / (self.rope_theta**exponent)
        if self.rope_scaling is None:
            return frequencies
        rule = self.rope_scaling
        wavelength = 2 * math.pi / frequencies
        low, high = rule.low_freq_factor, rule.high_freq_factor
        ramp = (rule.original_max_position_embeddings / wavelength - low) / (high - low)
        ramp = ramp.clamp(0, 1)
        return frequencies / rule.factor * (1 - ramp) + frequencies * ramp


def from_gguf(file: GgufFile) -> LlamaConfig:
    """Raises LoadError naming the metadata that is missing or says something that is not built."""
    architecture = file.field("general.architecture", str)
    if architecture != "llama":
        raise LoadError(f"{file.path.name}: architecture is `{architecture}`, not `llama`")
    scaling = file.fields.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in file.tensors:
        raise LoadError(f"{file.path.name}: RoPE scaling in a GGUF file is not supported (type `{scaling}`)")
    heads, hidden = file.field("llama.attention.head_count"), file.field("llama.embedding_length")
    head_dim = int(file.fields.get("llama.attention.key_length", hidden // heads))
    if file.fields.get("llama.rope.dimension_count", head_dim) != head_dim:
        raise LoadError(f"{file.path.name}: RoPE over a part of a head is not supported")
    embedding = file.tensors.get("token_embd.weight")
    vocab = int(file.fields.get("llama.vocab_size", embedding.shape[0] if embedding else 0))
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=file.field("llama.feed_forward_length"),
        num_hidden_layers=file.field("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=int(file.fields.get("llama.attention.head_count_kv", heads)),
        head_dim=head_dim,
        rms_norm_eps=file.field("llama.attention.layer_norm_rms_epsilon", float),
        rope_theta=float(file.fields.get("llama.rope.freq_base", 10000.0)),
        max_position_embeddings=int(file.fields.get("llama.context_length", 2048)),
        tie_word_embeddings="output.weight" not in file.tensors,
        bos_token_id=int(file.fields.get("tokenizer.ggml.bos_token_id", -1)),
        eos_token_id=int(file.fields.get("tokenizer.ggml.eos_token_id", -1)),
    )


def from_folder(folder: Path) -> LlamaConfig:
    """The facts in `config.json`. Raises LoadError."""
    path = folder / "config.json"
    values = read_json(path)
    if values.get("model_type") != "llama":
        raise LoadError(f"{path}: it is not the configuration of a Llama (`model_type`)")
    return from_mapping(values, str(path))


def from_mapping(values: Mapping[str, Any], where: str) -> LlamaConfig:
    """The facts under the names of HF's config.json; other keys are left alone. Raises LoadError naming key and place."""
    if values.get("hidden_act", "silu") != "silu" or values.get("attention_bias") or values.get("mlp_bias"):
        raise LoadError(f"{where}: another activation than silu and biases are not supported")
    try:
        heads = int(values["num_attention_heads"])
        rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
        return LlamaConfig(
            vocab_size=int(values["vocab_size"]),
            hidden_size=int(values["hidden_size"]),
            intermediate_size=int(values["intermediate_size"]),
            num_hidden_layers=int(values["num_hidden_layers"]),
            num_attention_heads=heads,
            num_key_value_heads=int(values.get("num_key_value_heads") or heads),
            head_dim=int(values.get("head_dim") or int(values["hidden_size"]) // heads),
            rms_norm_eps=float(values.get("rms_norm_eps", 1e-6)),
            rope_theta=float(values.get("rope_theta") or rope.get("rope_theta") or 10000.0),
            max_position_embeddings=int(values.get("max_position_embeddings", 2048)),
            tie_word_embeddings=bool(values.get("tie_word_embeddings", False)),
            bos_token_id=_first_id(values.get("bos_token_id")),
            eos_token_id=_first_id(values.get("eos_token_id")),
            rope_scaling=_scaling(rope, where),
        )
    except KeyError as error:
        raise LoadError(f"{where}: `{error.args[0]}` is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise LoadError(f"{where}: {error}") from error


def from_values(values: Mapping[str, Any]) -> LlamaConfig:
    """The inverse of `LlamaConfig.values`."""
    scaling = values.get("rope_scaling")
    return LlamaConfig(**{**values, "rope_scaling": Llama3Scaling(**scaling) if scaling else None})


def _first_id(value: Any) -> int:
    if isinstance(value, list):
        value = value[0] if value else None
    return -1 if value is None else int(value)


def _scaling(rope: Mapping[str, Any], where: str) -> Llama3Scaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise LoadError(f"{where}: RoPE scaling `{kind}` is not supported, only `llama3`")
    return Llama3Scaling(
        float(rope["factor"]),
        float(rope["low_freq_factor"]),
        float(rope["high_freq_factor"]),
        int(rope["original_max_position_embeddings"]),
    )
