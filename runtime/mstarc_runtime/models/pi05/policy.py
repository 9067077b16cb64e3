"""The component `Policy`: the language model reads cameras and prompt once, its action expert flows over what was read.

`prefix(seen: f32[M, d], ids: i64[T]) -> rows: f32[M + T, d]`, stateless: camera rows, then the embedded prompt.
`read(rows: f32[S, d])` writes S entries, all of which see each other (`attend full`, `positions seq`); it has no result.
`velocity(x: f32[horizon, action_dim], t: f32) -> v: f32[horizon, action_dim]` is frozen: its rows take the positions after the prefix, see
the prefix and each other, and leave nothing behind. t = 1 is noise, t = 0 the actions: x <- x - v · dt.

The node's config may hold `dtype` (float32 by default, bfloat16, float16: norms, time and action projections stay f32), `text_scale`
(sqrt(hidden_size)) and `image_scale` (1). Without a checkpoint the weights are random (`seed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint, Run
from mstarc_runtime.models.pi05 import config as sizes
from mstarc_runtime.models.pi05.config import PolicyConfig
from mstarc_runtime.models.pi05.nets import PolicyNet, angular_speeds, inverse_frequencies, rotation, time_waves
from mstarc_runtime.models.pi05.weights import policy_net, policy_prepared
from mstarc_runtime.weights import Fit

if TYPE_CHECKING:
    from mstarc_runtime.models.pi05.fused import Flow


class Policy:
    """Gemma and the action expert over one paged cache. Methods must run under `torch.inference_mode`, as the engine does."""

    def __init__(self, net: PolicyNet, config: PolicyConfig, device: str = "cpu") -> None:
        self.net = net
        self.config = config
        self._frequencies = inverse_frequencies(config, device)
        self._speeds = angular_speeds(config, device)

    @classmethod
    def config_values(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
        """Config values of the node, for the linker. Raises LoadError."""
        return sizes.policy_values(checkpoint, config)

    @classmethod
    def fit(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> Fit:
        """What `load` fills. Raises LoadError."""
        return policy_prepared(sizes.read_policy(checkpoint, config), checkpoint)[1]

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Policy:
        """Raises LoadError naming the key, tensor or file that is wrong."""
        facts = sizes.read_policy(checkpoint, config)
        dtype, seed = str(config.get("dtype", "float32")), int(config.get("seed", 0))
        return cls(policy_net(facts, checkpoint, dtype, device, seed), facts, device)

    # ----------------------------------------------------------------------------------------------------------------- ops

    def prefix(self, seen: Tensor, ids: Tensor) -> Tensor:
        """Camera rows [M, d] and prompt ids [T] -> the rows of a prefix [M + T, d], scaled."""
        text = self.embed(ids)
        seen = seen.to(text.dtype)
        return torch.cat([seen if self.config.image_scale == 1 else seen * self.config.image_scale, text])

    def read(self, run: Run, rows: Tensor) -> None:
        """Packed rows [ΣS, d] -> keys and values of every layer in the op's context."""
        net = self.net.language
        net.read(run, rows.to(net.embed.dtype, copy=True), self._frequencies)

    def velocity(self, run: Run, x: Tensor, t: Tensor) -> Tensor:
        """Noisy actions [B, horizon, action_dim] at times [B] -> velocities of the same shape, f32."""
        if x.is_cuda:
            return self._flow.velocity(run, x, t)
        turn = rotation(run.positions, self._frequencies)
        return self.net.expert.velocity(run, x, time_waves(t, self._speeds), turn)

    @cached_property
    def _flow(self) -> Flow:
        """The expert's step on a GPU."""
        from mstarc_runtime.models.pi05.fused import Flow  # needs triton, which is there where CUDA is

        return Flow(self.net.expert, self._frequencies, self._speeds)

    # -------------------------------------------------------------------------------------------------- parts of the prefix

    def hidden(self, run: Run, rows: Tensor) -> Tensor:
        """As `read`, and the language model's last hidden states [ΣS, d], which no op needs."""
        return self.net.language.hidden(run, rows, rotation(run.positions, self._frequencies))

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids [T] -> scaled embeddings [T, d]."""
        return F.embedding(ids, self.net.language.embed) * self.config.text_scale

    def conditions(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Times [B] -> sines and cosines, and the condition of the expert's norms, both f32 [B, expert width]."""
        waves = time_waves(t, self._speeds)
        return waves, self.net.expert.condition(waves)
