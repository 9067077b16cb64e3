"""The component `Policy`: the language model reads cameras and prompt once, its action expert flows over what was read.

`read(seen: f32[M, d], ids: i64[T])` writes M + T entries, all of which see each other (`attend full`, `positions seq`); it has no
result. `velocity(x: f32[horizon, action_dim], t: f32) -> v: f32[horizon, action_dim]` is frozen: its rows take the positions after
the prefix, see the prefix and each other, and leave nothing behind. t = 1 is noise, t = 0 the actions: x <- x - v · dt.

The node's config may hold `dtype` (float32 by default, bfloat16, float16: norms, time and action projections stay f32), `text_scale`
(sqrt(hidden_size)) and `image_scale` (1). Without a checkpoint the weights are random (`seed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint, Run
from mstarc_runtime.engines.paged_run import EngineError
from mstarc_runtime.models.pi05 import config as sizes
from mstarc_runtime.models.pi05.config import PolicyConfig
from mstarc_runtime.models.pi05.nets import PolicyNet, angular_speeds, inverse_frequencies, rotation, time_waves
from mstarc_runtime.models.pi05.weights import policy_net


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
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Policy:
        """Raises LoadError naming the key, tensor or file that is wrong."""
        facts = sizes.read_policy(checkpoint, config)
        dtype, seed = str(config.get("dtype", "float32")), int(config.get("seed", 0))
        return cls(policy_net(facts, checkpoint, dtype, device, seed), facts, device)

    # ----------------------------------------------------------------------------------------------------------------- ops

    def read(self, run: Run, seen: Tensor, ids: Tensor) -> None:
        """Packed camera rows [ΣM, d] and prompt ids [ΣT] -> keys and values of every layer in the op's context."""
        x = self.rows(run.rows, seen, ids)
        self.net.language.read(run, x, rotation(run.positions, self._frequencies))

    def velocity(self, run: Run, x: Tensor, t: Tensor) -> Tensor:
        """Noisy actions [B, horizon, action_dim] at times [B] -> velocities of the same shape, f32."""
        turn = rotation(run.positions, self._frequencies)
        return self.net.expert.velocity(run, x, time_waves(t, self._speeds), turn)

    # -------------------------------------------------------------------------------------------------- parts of the prefix

    def hidden(self, run: Run, seen: Tensor, ids: Tensor) -> Tensor:
        """As `read`, and the language model's last hidden states [Σ(M + T), d], which no op needs."""
        x = self.rows(run.rows, seen, ids)
        return self.net.language.hidden(run, x, rotation(run.positions, self._frequencies))

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids [T] -> scaled embeddings [T, d]."""
        return F.embedding(ids, self.net.language.embed) * self.config.text_scale

    def conditions(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Times [B] -> sines and cosines, and the condition of the expert's norms, both f32 [B, expert width]."""
        waves = time_waves(t, self._speeds)
        return waves, self.net.expert.condition(waves)

    def rows(self, counts: Sequence[int], seen: Tensor, ids: Tensor) -> Tensor:
        """Rows of a batch [ΣS, d]: of each request its camera rows, then its prompt. `counts` are the requests' M + T."""
        text = self.embed(ids)
        seen = seen.to(text.dtype)
        if self.config.image_scale != 1:
            seen = seen * self.config.image_scale
        if len(counts) == 1:
            return torch.cat([seen, text])
        cameras = self._camera_rows(counts, len(seen))
        texts = [count - rows for count, rows in zip(counts, cameras, strict=True)]
        pairs = zip(torch.split(seen, cameras), torch.split(text, texts), strict=True)
        return torch.cat([part for pair in pairs for part in pair])

    def _camera_rows(self, counts: Sequence[int], seen: int) -> list[int]:
        """How many of each request's rows are camera rows: as many whole cameras as fit into its count.

        That is never too few, so if the sum is right each of them is. It is wrong if a prompt is as long as a camera; then the
        batch cannot be told apart and is refused (the worker runs its requests one by one).
        """
        size = self.config.image_tokens
        found = [count // size * size for count in counts]
        if sum(found) != seen:
            raise EngineError(
                f"a batch of requests with {list(counts)} rows, {seen} of them of cameras ({size} rows each), cannot be told apart"
            )
        return found
