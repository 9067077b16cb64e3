"""Small stand-ins for the components and host functions of BAGEL, for test_bagel. Every number of an input counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mstarc_runtime.program import Part

BOS, EOS = 1, 2
CELL, PATCH = 16, 14
D, C, VOCAB = 8, 4, 30


def _weights(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) / 2 for shape in shapes]


class _Loaded:
    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Any:
        return cls()


def _cells(x: Tensor, side: int, width: int) -> Tensor:
    """`width` numbers of each square of an image [3, H, W], row by row."""
    squares = x.unfold(1, side, side).unfold(2, side, side).flatten(3)  # [3, rows, columns, side²]
    found = torch.stack([squares.mean(3), squares.amax(3), squares[..., 0]], 3).permute(1, 2, 0, 3)
    return found.reshape(-1, 9)[:, :width]


class Vit(_Loaded):
    def encode(self, x: Tensor) -> Tensor:
        return _cells(x, PATCH, D)


class Vae(_Loaded):
    def encode(self, noise: Any, x: Tensor) -> Tensor:
        rows = _cells(x, CELL, D)
        return rows + noise.normal(len(rows), D) / 10

    def decode(self, x: Tensor, h: int, w: int) -> Tensor:
        grid = x.reshape(h // CELL, w // CELL, C)[..., :3].permute(2, 0, 1)
        return torch.sin(grid.repeat_interleave(CELL, 1).repeat_interleave(CELL, 2))


class Llm(_Loaded):
    """Two layers. Rows of an image stand between two marks, all at one position."""

    def __init__(self) -> None:
        self.words, self.marks, self.into, self.out, *self.layers = _weights(
            3, (VOCAB, D), (2, D), (C, D), (D, C), (D, D + 4 + 4), (D, D + 4 + 4)
        )

    def _run(self, run: Any, x: Tensor) -> Tensor:
        x = x + torch.sin(run.positions.float())[:, None] / 10
        for layer, weight in enumerate(self.layers):
            q, k, v = (torch.tanh(x) @ weight).split((D, 4, 4), dim=-1)
            x = x + run.attend(layer, q.view(-1, 2, 4), k.view(-1, 1, 4), v.view(-1, 1, 4)).reshape(-1, D)
        return x

    def _marked(self, run: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of all requests with their marks, and where the rows themselves are."""
        blocks = rows.split([count - 2 for count in run.rows])
        marked = torch.cat([torch.cat([self.marks[:1], block, self.marks[1:]]) for block in blocks])
        own = torch.cat([torch.arange(count) for count in run.rows])
        ends = torch.tensor(run.rows).repeat_interleave(torch.tensor(run.rows)) - 1
        return marked, (own > 0) & (own < ends)

    def text(self, run: Any, ids: Tensor) -> None:
        self._run(run, self.words[ids])

    def step(self, run: Any, token: Tensor) -> Tensor:
        return self._run(run, self.words[token]) @ self.words.T

    def image(self, run: Any, rows: Tensor) -> None:
        self._run(run, self._marked(run, rows)[0])

    def latent(self, run: Any, rows: Tensor) -> None:
        self._run(run, -self._marked(run, rows)[0])

    def velocity(self, run: Any, x: Tensor, t: Tensor) -> Tensor:
        times = t.repeat_interleave(torch.tensor([count - 2 for count in run.rows]))
        marked, inner = self._marked(run, x @ self.into + times[:, None])
        return self._run(run, marked)[inner] @ self.out


# ---------------------------------------------------------------------------------------------------------------- the host


def text(*ids: int) -> Part:
    return Part("text", ids=ids)


def picture(h: int, w: int) -> Part:
    return Part("image", h=h, w=w)


def _pixels(h: int, w: int) -> Any:
    return np.sin(np.arange(3 * h * w, dtype=np.float32)).reshape(3, h, w)


def layout(parts: Sequence[Part], think: bool) -> list[Part]:
    """The system's words first, if the model is to think."""
    found = [Part("text_part", ids=np.array([BOS, 20, 21, EOS]))] if think else []
    for part in parts:
        if part.kind == "text":
            found.append(Part("text_part", ids=np.array([BOS, *part.ids, EOS])))
        else:
            small = _pixels(part.h // CELL * PATCH, part.w // CELL * PATCH)
            found.append(Part("image_part", large=_pixels(part.h, part.w), small=small))
    return found


def canvas(parts: Sequence[Part], height: int, width: int) -> tuple[int, int]:
    images = [part for part in parts if part.kind == "image"]
    return (images[-1].h, images[-1].w) if images else (height, width)


def rewrap(tokens: Any) -> Any:
    return np.array([BOS, *np.asarray(tokens).tolist(), EOS])
