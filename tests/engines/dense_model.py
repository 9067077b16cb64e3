"""A small random transformer as a component, and its dense oracle: lists of key and value rows, one query row at a time.

The oracle shares no code with the engine: it keeps every context as Python lists and computes attention row by row in f64.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

LAYERS, HEADS, KV_HEADS, DIM, WIDTH = 2, 4, 2, 6, 10


class Net:
    """Weights of the test model. `mix` turns positions into something the keys and queries depend on."""

    def __init__(self, seed: int) -> None:
        make = torch.Generator().manual_seed(seed)
        shape = [(LAYERS, WIDTH, heads * DIM) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS)]
        self.q, self.k, self.v, self.c = (torch.randn(s, generator=make) * 0.4 for s in shape)
        self.o = torch.randn(LAYERS, HEADS * DIM, WIDTH, generator=make) * 0.3
        self.table = torch.randn(50, WIDTH, generator=make)

    def embed(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Rows [T, WIDTH] or ids [T], plus an encoding of positions ([T], or [3, T] where every axis counts)."""
        x = rows if rows.is_floating_point() else self.table.to(torch.get_default_dtype())[rows]
        axes = positions if positions.dim() == 2 else positions[None]
        scale = torch.arange(1, WIDTH + 1, device=axes.device) * 0.37
        return x + sum(torch.sin(axis[:, None] * scale / (n + 1)) for n, axis in enumerate(axes))


class Probe:
    """The component: `forward(run, x)` gives packed rows, `tail(run, x)` the last row of each request."""

    def __init__(self, net: Net) -> None:
        self.net = net

    def forward(self, run: Any, x: Tensor, cross: bool = False) -> Tensor:
        net = self.net
        h = net.embed(x, run.positions)
        for n in range(LAYERS):
            shaped = [(h @ w[n]).view(len(h), -1, DIM) for w in (net.q, net.k, net.v)]
            mixed = run.attend(n, *shaped, scale=0.4)
            if cross:
                mixed = mixed + run.cross(n, (h @ net.c[n]).view(len(h), HEADS, DIM))
            h = torch.tanh(h + mixed.reshape(len(h), -1) @ net.o[n])
        return h

    def across(self, run: Any, x: Tensor) -> Tensor:
        return self.forward(run, x, cross=True)

    def tail(self, run: Any, x: Tensor) -> Tensor:
        return self.forward(run, x)[run.last]

    def listen(self, run: Any, x: Tensor) -> None:
        for n in range(LAYERS):
            run.write(n, *[(x @ w[n]).view(len(x), KV_HEADS, DIM) for w in (self.net.k, self.net.v)])


@dataclass
class Dense:
    """The oracle's context: per layer the key and value rows [KV_HEADS, DIM], plus position counter and ids."""

    rows: list[list[tuple[Tensor, Tensor]]] = field(default_factory=lambda: [[] for _ in range(LAYERS)])
    position: int = 0
    ids: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.rows[0])

    def fork(self) -> Dense:
        return copy.copy(Dense([list(layer) for layer in self.rows], self.position, list(self.ids)))


def dense_listen(net: Net, context: Dense, x: Tensor) -> None:
    """Append rows without attending."""
    for n in range(LAYERS):
        keys, values = ((x.double() @ w[n].double()).view(-1, KV_HEADS, DIM) for w in (net.k, net.v))
        context.rows[n] += list(zip(keys, values, strict=True))


def dense_run(
    net: Net, context: Dense, x: Tensor, positions: Tensor, causal: bool, frozen: bool, cross: Dense | None = None
) -> Tensor:
    """One call on one context: [T, WIDTH] of results in f64; the context grows unless frozen."""
    table = net.table.double()
    h = net.embed(table[x] if not x.is_floating_point() else x.double(), positions)
    for n in range(LAYERS):
        q, k, v = ((h @ w[n].double()).view(len(h), -1, DIM) for w in (net.q, net.k, net.v))
        past, own = context.rows[n], list(zip(k, v, strict=True))
        out = []
        for i in range(len(h)):
            seen = past + (own[: i + 1] if causal else own)
            row = _mix(q[i], seen, 0.4)
            if cross is not None:
                row = row + _mix((h[i] @ net.c[n].double()).view(HEADS, DIM), cross.rows[n], DIM**-0.5)
            out.append(row.reshape(-1))
        if not frozen:
            context.rows[n] = past + own
        h = torch.tanh(h + torch.stack(out) @ net.o[n].double())
    return h


def _mix(q: Tensor, seen: list[tuple[Tensor, Tensor]], scale: float) -> Tensor:
    if not seen:
        return torch.zeros_like(q)
    keys = torch.stack([key for key, _ in seen]).repeat_interleave(HEADS // KV_HEADS, 1)
    values = torch.stack([value for _, value in seen]).repeat_interleave(HEADS // KV_HEADS, 1)
    weights = torch.softmax(torch.einsum("hd,nhd->hn", q, keys) * scale, -1)
    return torch.einsum("hn,nhd->hd", weights, values)
