"""The sampler of captured loops: the rules and the draws of `sampling.sampler`, with fixed shapes and nothing read back.

Settings, histories and counters of B rows live in device tensors. What no request can ask of a sampler (a penalty, a cut, ...) is
left out of its kernels: `SamplerPlan`. There is no sort: the smallest logit that stays is found bit by bit on keys that order like
the logits, by counting (top-k) or summing weights (top-p) above it, so a flat row costs what a peaked one does.

Weights are f32 and their sums f64, so a draw may differ from the host's only where the random number hits a boundary to 1e-7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mstarc_runtime.sampling.philox_torch import uniforms
from mstarc_runtime.sampling.sampler import Settings

BLOCK = 512  # sums run over blocks of so many ids first
_COLDEST = torch.finfo(torch.float32).tiny
_SIGN = 1 << 31


@dataclass(frozen=True, slots=True)
class SamplerPlan:
    """What draws of one sampler can need, whatever the request. Raises ValueError if lists of ids depend on the request."""

    greedy: bool
    penalty: bool
    top_k: bool
    top_p: bool
    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()
    min_tokens: bool = False
    ends: tuple[int, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> SamplerPlan:
        """From the settings of a linked sampler: values, or `param:<name>`."""

        def can(name: str, off: float) -> bool:
            return name in settings and settings[name] != off

        lists = {name: settings.get(name, ()) for name in ("suppress", "suppress_first", "ends")}
        for name, ids in lists.items():
            if isinstance(ids, str):
                raise ValueError(f"`{name}` of a sampler differs from request to request")
        return cls(
            greedy=settings.get("temperature") == 0,
            penalty=can("repetition_penalty", 1),
            top_k=can("top_k", 0),
            top_p=can("top_p", 1),
            min_tokens=can("min_tokens", 0),
            **{name: tuple(int(token) for token in ids) for name, ids in lists.items()},
        )


class SamplerRows:
    """Settings and history of one sampler in B rows.

    seen bool [B, vocab]: ids that the penalty counts (only with a penalty); count i64 [B]: draws so far.
    """

    def __init__(self, plan: SamplerPlan, rows: int, vocab: int, device: torch.device) -> None:
        self.plan, self.vocab = plan, vocab
        self.temperature = torch.zeros(rows, device=device)
        self.top_k = torch.zeros(rows, dtype=torch.int64, device=device)
        self.top_p = torch.ones(rows, dtype=torch.float64, device=device)
        self.penalty = torch.ones(rows, device=device)
        self.min_tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self.count = torch.zeros(rows, dtype=torch.int64, device=device)
        self.seen = torch.zeros(rows, vocab if plan.penalty else 0, dtype=torch.bool, device=device)
        self.never = _table(plan.suppress, vocab, device)
        self.not_first = _table(plan.suppress_first, vocab, device)
        self.ends = _table(plan.ends, vocab, device)

    def tensors(self) -> list[Tensor]:
        """Everything that has a row per request."""
        return [self.temperature, self.top_k, self.top_p, self.penalty, self.min_tokens, self.count, self.seen]

    def first(self, rows: int) -> SamplerRows:
        """The first rows, sharing memory with these."""
        part = object.__new__(SamplerRows)
        part.__dict__.update(self.__dict__)
        for name in ("temperature", "top_k", "top_p", "penalty", "min_tokens", "count", "seen"):
            setattr(part, name, getattr(self, name)[:rows])
        return part

    def put(
        self, rows: Sequence[int], settings: Sequence[Settings], counts: Sequence[int], ids: Sequence[Sequence[Tensor]]
    ) -> None:
        """These rows become requests': `counts` draws so far; `ids`: what the penalty of each counts. Nobody waits for the device."""
        device = self.count.device
        at = uploaded(np.asarray(rows, np.int64), device)
        values = zip(settings, counts, strict=True)
        numbers = [(s.temperature, s.top_k, s.top_p, s.repetition_penalty, s.min_tokens, count) for s, count in values]
        tensors = (self.temperature, self.top_k, self.top_p, self.penalty, self.min_tokens, self.count)
        for tensor, column in zip(tensors, uploaded(np.array(numbers, np.float64).T, device), strict=True):
            tensor.index_copy_(0, at, column.to(tensor.dtype))
        if self.plan.penalty:
            self.seen.index_copy_(0, at, self._marks(ids))

    def _marks(self, ids: Sequence[Sequence[Tensor]]) -> Tensor:
        """Which ids of the vocabulary are among those of each row, bool [n, vocab]."""
        device = self.seen.device
        marks = torch.zeros(len(ids), self.vocab + 1, dtype=torch.bool, device=device)  # the last one: ids outside
        found = [(row, some) for row, several in enumerate(ids) for some in several if len(some)]
        if found:
            firsts = np.repeat([row * (self.vocab + 1) for row, _ in found], [len(some) for _, some in found])
            joined = torch.cat([some.to(device) for _, some in found])
            inside = (joined >= 0) & (joined < self.vocab)
            marks.view(-1).index_fill_(0, torch.where(inside, joined, self.vocab) + uploaded(firsts, device), True)
        return marks[:, :-1]

    def note(self, ids: Tensor, active: Tensor) -> None:
        """Count ids i64 [B] of the active rows for the penalty (a token that was written to the sampler's context)."""
        if not self.plan.penalty:
            return
        if ids.is_cuda:
            _kernels().remember(self, ids, active)
            return
        at = ids.clamp(0, self.vocab - 1)[:, None]
        counts = (active & (ids >= 0) & (ids < self.vocab))[:, None]
        self.seen.scatter_(1, at, self.seen.gather(1, at) | counts)

    def draw(self, logits: Tensor, number: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, vocab], a number in [0, 1) per row f64 [B] -> ids i64 [B], and bool [B]: the row's logits could be drawn from.

        Ids of active rows join their histories. A row without a usable logit gets id 0.
        """
        if logits.is_cuda and not self.plan.greedy:
            drawn: tuple[Tensor, Tensor] = _kernels().draw(self, logits, number, active)
            return drawn
        ids, usable = self._drawn(logits, number)
        joins = active & usable
        self.count.add_(joins)
        self.note(ids, joins)
        return ids, usable

    def _drawn(self, logits: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
        """`draw` without the histories."""
        adjusted = self._adjusted(logits)
        best, ids = adjusted.max(dim=-1)  # the lowest index on ties, as torch documents
        usable = best.isfinite()
        if not self.plan.greedy:
            drawn = self._random(adjusted.float(), best.float(), number)
            ids = torch.where(self.temperature > 0.0, drawn, ids)
        return torch.where(usable, ids, 0), usable

    def _adjusted(self, logits: Tensor) -> Tensor:
        """Penalty and suppression, in f32 (f64 stays); the penalty counts an id once."""
        plan = self.plan
        x = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        if plan.penalty:
            penalty = self.penalty[:, None].to(x.dtype)
            x = torch.where(self.seen, torch.where(x > 0, x / penalty, x * penalty), x)
        banned = self.never
        if plan.suppress_first:
            banned = banned | (self.not_first & (self.count == 0)[:, None])
        if plan.min_tokens and plan.ends:
            banned = banned | (self.ends & (self.count < self.min_tokens)[:, None])
        if plan.suppress or plan.suppress_first or (plan.min_tokens and plan.ends):
            x = x.masked_fill(banned, float("-inf"))
        return x

    def _random(self, logits: Tensor, best: Tensor, number: Tensor) -> Tensor:
        """One draw per row from adjusted logits f32 [B, vocab]; rows that cannot be drawn give any id of the vocabulary."""
        logits = F.pad(logits, (0, -self.vocab % BLOCK), value=float("-inf"))
        weights = ((logits - best[:, None]) / self.temperature.clamp(min=_COLDEST)[:, None]).exp()
        if self.plan.top_k or self.plan.top_p:
            weights = self._cut(logits, weights)
        total = weights.view(len(weights), -1, BLOCK).sum(-1, dtype=torch.float64).sum(-1)
        return _passing(weights, number * total).clamp(max=self.vocab - 1)

    def _cut(self, logits: Tensor, weights: Tensor) -> Tensor:
        """The weights with those of ids that top-k and top-p drop at 0. Of ids with the smallest kept logit the lowest ids stay."""
        keys = _ordered(logits)
        lowest = stay = torch.zeros_like(self.top_k)  # below every key
        if self.plan.top_k:
            limit = torch.where((self.top_k > 0) & (self.top_k < self.vocab), self.top_k, logits.shape[1])
            lowest = _search(lambda at: (keys >= at).sum(-1) >= limit, lowest)
            stay = limit - (keys > _signed(lowest)).sum(-1)
        if self.plan.top_p:
            lowest, stay = self._nucleus(keys, weights, lowest, stay)
        at = _signed(lowest)
        ties = keys == at
        last = _passing(ties.float(), stay.double() - 0.5)
        place = torch.arange(keys.shape[1], device=keys.device)
        return torch.where((keys > at) | (ties & (place <= last[:, None])), weights, 0.0)

    def _nucleus(self, keys: Tensor, weights: Tensor, lowest: Tensor, stay: Tensor) -> tuple[Tensor, Tensor]:
        """top-p after top-k kept the keys from `lowest` on, `stay` of those that equal it; gives both anew.

        An id stays if those before it sum to less than top_p of the total; the best (weight 1) always does, so a share below 1 counts
        as 1.
        """

        def mass(chosen: Tensor) -> Tensor:
            return torch.where(chosen, weights, 0.0).sum(-1, dtype=torch.float64)

        at = _signed(lowest)
        tie = torch.where(keys == at, weights, 0.0).amax(-1).double()
        share = (self.top_p * (mass(keys > at) + stay * tie)).clamp(min=1.0)
        cut = _search(lambda at: mass(keys >= at) >= share, lowest)
        at = _signed(cut)
        tie = torch.where(keys == at, weights, 0.0).amax(-1).double()
        needed = ((share - mass(keys > at)) / tie.clamp(min=_COLDEST)).ceil().clamp(min=1.0)
        needed = torch.where(cut == lowest, torch.minimum(needed, stay.double()), needed)
        on = self.top_p < 1.0
        return torch.where(on, cut, lowest), torch.where(on, needed, stay.double()).long()


def uploaded(values: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """An array of the host on the device, through pinned memory: nobody waits."""
    host = torch.from_numpy(np.ascontiguousarray(values))
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def _kernels() -> ModuleType:
    """The kernels of the draws; triton is there where CUDA is."""
    from mstarc_runtime.sampling import draw_triton

    return draw_triton


def _table(ids: tuple[int, ...], vocab: int, device: torch.device) -> Tensor:
    """bool [vocab] of the ids. Raises ValueError if one lies outside."""
    if ids and not 0 <= min(ids) <= max(ids) < vocab:
        raise ValueError(f"suppressed ids reach from {min(ids)} to {max(ids)}, the vocabulary has {vocab}")
    table = torch.zeros(vocab, dtype=torch.bool)
    table[list(ids)] = True
    return table.to(device)


def _ordered(x: Tensor) -> Tensor:
    """Keys i32 that order like the f32 values (both zeros have one key)."""
    bits = (x + 0.0).view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _signed(key: Tensor) -> Tensor:
    """A key as `_search` counts them, from 0 to 2**32 - 1 in i64 [B], as one to compare with: i32 [B, 1]."""
    return (key - _SIGN).int()[:, None]


def _search(holds: Callable[[Tensor], Tensor], floor: Tensor) -> Tensor:
    """The largest key i64 [B] at or above `floor` for which `holds(key)`; it must hold for every smaller key too."""
    found = torch.zeros_like(floor)
    for bit in reversed(range(32)):
        tried = found | (1 << bit)
        found = torch.where((tried <= floor) | holds(_signed(tried)), tried, found)
    return torch.maximum(found, floor)


def _passing(weights: Tensor, target: Tensor) -> Tensor:
    """The first id i64 [B] where the sum of weights [B, n · BLOCK] up to and with it passes target f64 [B].

    Where rounding lets no sum pass, the last id with a weight.
    """
    blocks = weights.view(len(weights), -1, BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    block = torch.minimum((sums <= target[:, None]).sum(-1), (sums < sums[:, -1:]).sum(-1))
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    inner = blocks.gather(1, block[:, None, None].expand(-1, 1, BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
    place = torch.minimum((inner <= (target - before)[:, None]).sum(-1), (inner < inner[:, -1:]).sum(-1))
    return block * BLOCK + place


class Site:
    """A drawing site of a loop: j i64 [B] counts its executions, `name` is `walk/site`."""

    def __init__(self, hashed: int, rows: int, device: torch.device) -> None:
        self.hashed = hashed
        self.j = torch.zeros(rows, dtype=torch.int64, device=device)

    def number(self, seed: Tensor, rows: int, active: Tensor) -> Tensor:
        """The next uniform number of the first `rows` rows, f64 [rows]; active rows move on."""
        j = self.j[:rows]
        return uniforms(seed, self.hashed, j, active)
