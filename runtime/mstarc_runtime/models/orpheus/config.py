"""The facts of a SNAC codec, from the `config.json` beside its weights or from the node's section of the binding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.config_json import count, counts, read_json

#: what the decoder below is written for; another value of a checkpoint is refused
_BUILT = {"noise": True, "depthwise": True, "attn_window_size": None}


@dataclass(frozen=True, slots=True)
class SnacConfig:
    """Sizes of a decoder. `latent_dim`: channels of the sum of all codebooks; `vq_strides`: how often a code of a level is repeated."""

    latent_dim: int
    decoder_dim: int
    decoder_rates: tuple[int, ...]
    codebook_size: int
    codebook_dim: int
    vq_strides: tuple[int, ...]
    sampling_rate: int

    def __post_init__(self) -> None:
        sizes = (self.latent_dim, self.decoder_dim, self.codebook_size, self.codebook_dim, self.sampling_rate)
        if min(*sizes, *self.decoder_rates, *self.vq_strides) < 1:
            raise LoadError(f"SNAC: sizes must be positive: {self}")
        if self.decoder_dim % 2 ** len(self.decoder_rates):
            raise LoadError(f"SNAC: {self.decoder_dim} channels cannot be halved {len(self.decoder_rates)} times")
        if any(self.vq_strides[0] % stride for stride in self.vq_strides):
            raise LoadError(f"SNAC: `vq_strides` {list(self.vq_strides)} do not divide the first of them")

    @property
    def codes_per_frame(self) -> tuple[int, ...]:
        """Codes that each level gives to a frame; a frame is one code of the coarsest level."""
        return tuple(self.vq_strides[0] // stride for stride in self.vq_strides)

    @property
    def noise_lengths(self) -> tuple[int, ...]:
        """Time steps of one frame in each block of the decoder; the last is the number of samples."""
        lengths, steps = [], self.vq_strides[0]
        for rate in self.decoder_rates:
            steps *= rate
            lengths.append(steps)
        return tuple(lengths)

    @property
    def frame_samples(self) -> int:
        """Samples of one frame."""
        return self.noise_lengths[-1]

    def values(self) -> dict[str, Any]:
        """The facts under the keys of the node's section."""
        return {
            **{key: getattr(self, key) for key in ("latent_dim", "decoder_dim", "codebook_size", "codebook_dim")},
            "codebooks": len(self.vq_strides),
            "sampling_rate": self.sampling_rate,
            "decoder_rates": list(self.decoder_rates),
            "vq_strides": list(self.vq_strides),
        }


def read_config(checkpoint: Checkpoint, config: Mapping[str, Any]) -> SnacConfig:
    """The checkpoint's facts, or those of the section if there is no checkpoint. Raises LoadError naming the key."""
    if checkpoint.path is None:
        return _facts(config, "the node's config")
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    path = folder / "config.json"
    found = read_json(path)
    for key, value in _BUILT.items():
        if found.get(key, value) != value:
            raise LoadError(f"{path}: `{key}` is {found[key]!r}, and only {value!r} is built")
    return _facts({**found, "latent_dim": _latent_dim(found, path)}, str(path))


def _latent_dim(found: Mapping[str, Any], path: Path) -> int:
    """The encoder doubles its channels in each of its stages, unless the file says what it ends with."""
    stated = found.get("latent_dim")
    if stated is not None:
        return count(found, "latent_dim", str(path))
    return count(found, "encoder_dim", str(path)) << len(counts(found, "encoder_rates", str(path)))


def _facts(values: Mapping[str, Any], where: str) -> SnacConfig:
    return SnacConfig(
        latent_dim=count(values, "latent_dim", where),
        decoder_dim=count(values, "decoder_dim", where),
        decoder_rates=counts(values, "decoder_rates", where),
        codebook_size=count(values, "codebook_size", where),
        codebook_dim=count(values, "codebook_dim", where),
        vq_strides=counts(values, "vq_strides", where),
        sampling_rate=count(values, "sampling_rate", where),
    )
