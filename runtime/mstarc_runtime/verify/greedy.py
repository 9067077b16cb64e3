"""Greedy decoding over the paged engine with a reference's ids fed back: every step is compared on the reference's own path.

If all ids agree, that is what free decoding gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine
from mstarc_runtime.sampling.philox import DrawKey
from mstarc_runtime.sampling.sampler import History, Row, Settings, draw


@dataclass(frozen=True, slots=True)
class Ops:
    """The ops of a language model: its component's methods, and whether they look across."""

    read: Callable[..., Any]
    step: Callable[..., Any]
    cross: bool = False

    @property
    def specs(self) -> tuple[OpSpec, OpSpec]:
        return OpSpec("llm.read", ("packed",), cross=self.cross), OpSpec("llm.step", ("scalar",), cross=self.cross)


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a batch: its prompt [T], the reference's ids [n] to feed back, and a context to look across to."""

    prompt: Tensor
    ids: Sequence[int]
    sound: Context | None = None


@dataclass(frozen=True, slots=True)
class Path:
    """What a request gave in every step, on the CPU: raw logits [n, vocab], the scores that were drawn from, the greedy ids."""

    logits: Tensor
    scores: Tensor
    ids: list[int]


def decode(engine: TransformerEngine, ops: Ops, settings: Settings, batch: Sequence[Request]) -> list[Path]:
    """All requests in one batch, each until its reference ends. The penalty looks at the context, the first draw's list at the draw."""
    read, step = ops.specs
    contexts = [Context(engine.pool) for _ in batch]
    histories = [History() for _ in batch]
    raw: list[list[Tensor]] = [[] for _ in batch]
    scores: list[list[Tensor]] = [[] for _ in batch]
    drawn: list[list[int]] = [[] for _ in batch]
    active = list(range(len(batch)))
    calls = [Call((r.prompt,), (c,), len(r.prompt), cross=r.sound) for r, c in zip(batch, contexts, strict=True)]
    (logits,) = engine.call(ops.read, read, calls)
    while True:
        rows = [Row(settings, histories[i], DrawKey(0, "verify", len(drawn[i])), contexts[i].ids) for i in active]
        for i, row, token in zip(active, logits, draw(torch.as_tensor(logits), rows).tolist(), strict=True):
            raw[i].append(row.float().cpu())
            scores[i].append(_scores(raw[i][-1], settings, contexts[i].ids.cpu(), first=not drawn[i]))
            drawn[i].append(token)
        active = [i for i in active if len(drawn[i]) < len(batch[i].ids)]
        if not active:
            break
        fed = [torch.tensor(batch[i].ids[len(drawn[i]) - 1], device=engine.pool.data.device) for i in active]
        calls = [Call((token,), (contexts[i],), 1, cross=batch[i].sound) for i, token in zip(active, fed, strict=True)]
        (logits,) = engine.call(ops.step, step, calls)
    for context in contexts:
        context.drop()
    return [Path(torch.stack(raw[i]), torch.stack(scores[i]), drawn[i]) for i in range(len(batch))]


def _scores(logits: Tensor, settings: Settings, seen: Tensor, first: bool) -> Tensor:
    """Logits [vocab] after penalty and suppression (language, sentence 2), spelled out."""
    found = logits.clone()
    before = found[seen]
    found[seen] = torch.where(before > 0, before / settings.repetition_penalty, before * settings.repetition_penalty)
    found[[*settings.suppress, *(settings.suppress_first if first else ())]] = -torch.inf
    return found
