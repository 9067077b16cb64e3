"""A dense `Run` for tests of Whisper components, and one request that has listened: the plainest thing the paged engine must equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mstarc_runtime.models.whisper.components import Scribe

torch.set_num_threads(1)


class Context:
    """Dense keys and values of one request: per layer [n, heads, head_dim]."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.length = 0

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if layer in self.layers:
            k, v = (torch.cat(pair) for pair in zip(self.layers[layer], (k, v), strict=True))
        self.layers[layer] = (k, v)
        return k, v


class DenseRun:
    """The `Run` protocol in its plainest form: request by request, no pages."""

    def __init__(self, rows: Sequence[int], own: Sequence[Context], heard: Sequence[Context] = ()) -> None:
        self.rows = list(rows)
        self.own, self.heard = own, heard
        self.positions = torch.cat([torch.arange(c.length, c.length + n) for c, n in zip(own, rows, strict=True)])
        self.last = torch.tensor(self.rows).cumsum(0) - 1
        for context, n in zip(own, rows, strict=True):
            context.length += n

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        out = []
        for context, mine, new_k, new_v in zip(self.own, *(torch.split(x, self.rows) for x in (q, k, v)), strict=True):
            all_k, all_v = context.append(layer, new_k, new_v)
            out.append(self._one(mine, all_k, all_v, True, scale))
        return torch.cat(out)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        for context, *new in zip(self.own, torch.split(k, self.rows), torch.split(v, self.rows), strict=True):
            context.append(layer, *new)

    def cross(self, layer: int, q: Tensor, *, scale: float | None = None) -> Tensor:
        parts = zip(self.heard, torch.split(q, self.rows), strict=True)
        return torch.cat([self._one(mine, *context.layers[layer], False, scale) for context, mine in parts])

    @staticmethod
    def _one(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
        scores = torch.einsum("qhd,khd->hqk", q, k) * (scale if scale is not None else q.shape[-1] ** -0.5)
        if causal:
            later = torch.arange(len(k))[None] > torch.arange(len(k) - len(q), len(k))[:, None]
            scores = scores.masked_fill(later, -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


class Heard:
    """One request after `listen`."""

    def __init__(self, scribe: Scribe, states: Tensor) -> None:
        self.scribe, self.sound, self.said = scribe, Context(), Context()
        scribe.listen(DenseRun([len(states)], [self.sound]), states)

    def run(self, rows: int) -> DenseRun:
        return DenseRun([rows], [self.said], [self.sound])

    def greedy(
        self, prompt: Sequence[int], never: Sequence[int], not_first: Sequence[int], limit: int
    ) -> tuple[list[int], Tensor]:
        """Ids with the end id, and the raw logits of every step."""
        ids: list[int] = []
        raw = [self.scribe.read(self.run(len(prompt)), torch.tensor(prompt))[0]]
        while True:
            allowed = raw[-1].clone()
            allowed[[*never, *([] if ids else not_first)]] = -torch.inf
            ids.append(int(allowed.argmax()))
            if ids[-1] == self.scribe.config.eos_token_id or len(ids) == limit:
                return ids, torch.stack(raw)
            raw.append(self.scribe.step(self.run(1), torch.tensor(ids[-1:]))[0])


def close(got: Tensor, wanted: Tensor, relative: float = 1e-4) -> None:
    """Equal within `relative` of the largest value."""
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    assert (got - wanted).abs().max() <= relative * wanted.abs().max()
