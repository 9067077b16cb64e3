"""The component `Snac`: `decode(ids: i64[28]) -> pcm: f32[2048]`, the second of four frames of audio ids, at 24 kHz.

A frame is 7 ids: the id of place p in its frame is first_id + 4096 · p + code. Place 0 is of the coarsest level, 1 and 4 of the
second, 2, 3, 5 and 6 of the finest. The whole window is decoded and the samples of its second frame are given: the windows of a
stream with stride 7 give every frame but the first and the last two once, as the public client does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint, Noise
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.orpheus import weights
from mstarc_runtime.models.orpheus.config import SnacConfig, read_config
from mstarc_runtime.models.orpheus.nets import SnacDecoder
from mstarc_runtime.weights import Fit

PLACES = ((0,), (1, 4), (2, 3, 5, 6))  # in a frame, by level
FRAME = 7
WINDOW = 4  # frames
HEARD = 1  # the frame of a window whose samples are given


class Snac:
    """The decoder on one device, in f32. No method waits for the device, so all of them can be captured in a graph."""

    def __init__(self, net: SnacDecoder, facts: SnacConfig, first_id: int, noisy: bool, device: str) -> None:
        self.net = net
        self.facts = facts
        self._noisy = noisy
        if facts.codes_per_frame != tuple(len(places) for places in PLACES):
            raise LoadError(f"SNAC: `vq_strides` {list(facts.vq_strides)} do not make frames of {FRAME} ids")
        places = torch.arange(FRAME, device=device)
        self._offsets = (first_id + facts.codebook_size * places).repeat(WINDOW)
        frames = FRAME * torch.arange(WINDOW, device=device)[:, None]
        self._orders = [(frames + torch.tensor(places, device=device)).flatten() for places in PLACES]

    @classmethod
    def config_values(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
        """Config values of the node for the linker. Raises LoadError."""
        return read_config(checkpoint, config).values()

    @classmethod
    def fit(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> Fit:
        """What `load` fills. Raises LoadError."""
        return weights.prepared(read_config(checkpoint, config), checkpoint)[1]

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Snac:
        """`first_id` of the section is the id of code 0 at place 0; with `noise: false` the codec draws nothing.

        Raises LoadError naming the tensor, key or file that is wrong.
        """
        facts = read_config(checkpoint, config)
        first = config.get("first_id")
        noisy = config.get("noise", True)
        if not isinstance(first, int) or isinstance(first, bool) or first < 0:
            raise LoadError(f"SNAC: `first_id` of the node is {first!r}, not an id")
        if not isinstance(noisy, bool):
            raise LoadError(f"SNAC: `noise` of the node is {noisy!r}, not true or false")
        net = weights.decoder(facts, checkpoint, int(config.get("seed", 0)), device)
        return cls(net, facts, first, noisy, device)

    # ------------------------------------------------------------------------------------------------------------------ op

    def decode(self, noise: Noise, ids: Tensor) -> Tensor:
        """Windows of ids [B, 28] -> samples [B, 2048]; see `windows`."""
        steps = self.facts.noise_lengths if self._noisy else ()
        return self.windows(ids, [noise.normal(WINDOW * count) for count in steps] or None)

    # ----------------------------------------------------------------------------------------------------------------- net

    def codes(self, ids: Tensor) -> tuple[list[Tensor], Tensor]:
        """Windows of ids [B, 28] -> codes of each level [B, 4 · codes of a frame], and whether all ids are in place [B].

        An id that is not of its place, as a model may write one, stands for no code; it is read as the nearest.
        """
        codes = ids - self._offsets
        last = self.facts.codebook_size - 1
        good = ((codes >= 0) & (codes <= last)).all(dim=1)
        codes = codes.clamp(0, last)
        return [codes[:, order] for order in self._orders], good

    def windows(self, ids: Tensor, noise: Sequence[Tensor] | None) -> Tensor:
        """Windows of ids [B, 28] -> samples of their second frames [B, 2048]; silence for a window with an id out of place.

        `noise`: standard normals [B, 4 · steps of a frame] for each stage (`facts.noise_lengths`); None leaves the noise out.
        """
        codes, good = self.codes(ids)
        samples = self.facts.frame_samples
        heard = self.net(codes, noise, (HEARD * samples, (HEARD + 1) * samples))
        return torch.where(good[:, None], heard, torch.zeros_like(heard))
