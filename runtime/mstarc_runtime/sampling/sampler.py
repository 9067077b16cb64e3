"""Token sampling for a batch whose rows each have their own settings, history and random key (language, sentence 2).

Order: repetition penalty, suppressed ids, temperature, top-k, top-p; then one draw, by inverting the cumulative weights in id order
with one uniform number. A row's draw depends on its own logits, settings, history and key alone. Temperature 0 takes the largest
logit, the lowest id on ties; top-k and top-p also prefer lower ids on ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mstarc_runtime.errors import BadRequest, RequestFailed
from mstarc_runtime.sampling.philox import DrawKey, uniforms

_COLDEST = torch.finfo(torch.float32).tiny  # f32 takes a temperature below for 0, and 0 / 0 is no weight
_CANDIDATES = 256  # top-p looks at so many of the largest logits before it sorts a whole row


class BadLogits(RequestFailed):
    """Rows without a usable logit: NaN, +inf, or every id suppressed. `rows` are their indices in the batch."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(f"the logits of {len(rows)} requests hold NaN or leave no id to draw")
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one row. `top_k` 0 and `top_p` 1 switch them off. Raises BadRequest naming a setting out of range.

    `suppress` ids are never drawn, `suppress_first` not by the first draw, `ends` not by the first `min_tokens` draws.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()
    min_tokens: int = 0
    ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("suppress", "suppress_first", "ends"):  # lists come from JSON
            object.__setattr__(self, name, tuple(map(int, getattr(self, name))))
        checks = (
            ("temperature", 0.0 <= self.temperature < float("inf"), "at least 0"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0.0 <= self.top_p <= 1.0, "in 0..1"),
            ("repetition_penalty", 0.0 < self.repetition_penalty < float("inf"), "above 0"),
            ("min_tokens", self.min_tokens >= 0, "at least 0"),
        )
        for name, holds, rule in checks:
            if not holds:
                raise BadRequest(f"`{name}` is {getattr(self, name)}, it must be {rule}", name)

    @property
    def plain(self) -> bool:
        """Greedy on the logits as they are."""
        return (
            self.temperature == 0.0
            and self.repetition_penalty == 1.0
            and not (self.suppress or self.suppress_first or (self.min_tokens and self.ends))
        )


class History:
    """What one sampler has drawn in one request, in order."""

    __slots__ = ("_ids", "count")

    def __init__(self) -> None:
        self.count = 0
        self._ids: Tensor | None = None

    @property
    def ids(self) -> Tensor:
        """The draws, i64 [count]."""
        return torch.empty(0, dtype=torch.int64) if self._ids is None else self._ids[: self.count]

    def append(self, drawn: Tensor) -> None:
        """Add one id (i64 [])."""
        self.extend(drawn[None])

    def extend(self, drawn: Tensor) -> None:
        """Add ids in order (i64 [n])."""
        with torch.inference_mode():
            end = self.count + len(drawn)
            if self._ids is None or end > len(self._ids):
                grown = torch.empty(max(64, end, 2 * self.count), dtype=torch.int64, device=drawn.device)
                grown[: self.count] = self.ids
                self._ids = grown
            self._ids[self.count : end] = drawn
            self.count = end


@dataclass(frozen=True, slots=True)
class Row:
    """One request's draw. `over`: ids that the penalty counts beside the sampler's own draws (those of a context), i64 [n]."""

    settings: Settings
    history: History
    key: DrawKey
    over: Tensor | None = None


@torch.inference_mode()
def draw(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Logits [B, vocab] (any float type, left as they are) -> ids i64 [B]; each id joins its row's history.

    Raises BadLogits naming the rows that cannot be drawn; no history has then changed.
    """
    if logits.dim() != 2 or len(logits) != len(rows):
        raise ValueError(f"logits are {list(logits.shape)} for {len(rows)} rows")
    if not all(row.settings.plain for row in rows):
        logits = _adjusted(logits, rows)
    best, ids = logits.max(dim=-1)  # the lowest index on ties, as torch documents
    if not bool(best.isfinite().all()):
        raise BadLogits([n for n, fine in enumerate(best.isfinite().tolist()) if not fine])
    random = [n for n, row in enumerate(rows) if row.settings.temperature > 0.0]
    numbers = uniforms([rows[n].key for n in random]).tolist()
    for n, number in zip(random, numbers, strict=True):
        ids[n] = _draw_row(logits[n].float(), rows[n].settings, number)
    for row, drawn in zip(rows, ids, strict=True):
        row.history.append(drawn)
    return ids


# ------------------------------------------------------------------------------------------------------ penalty, suppression


def _adjusted(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """A copy in f32 (f64 stays) with the penalty applied and suppressed ids at -inf."""
    logits = logits.clone() if logits.dtype in (torch.float32, torch.float64) else logits.float()
    vocab = logits.shape[1]
    where, ids, penalties = [], [], []
    for n, row in enumerate(rows):
        if row.settings.repetition_penalty != 1.0:
            for part in (row.history.ids, row.over):
                if part is not None and len(part):
                    kept = part.to(logits.device)
                    kept = kept[kept < vocab]
                    ids.append(kept)
                    where.append(torch.full_like(kept, n))
                    penalties.append(torch.full(kept.shape, row.settings.repetition_penalty, dtype=logits.dtype))
    if ids:
        at, penalty = (torch.cat(where), torch.cat(ids)), torch.cat(penalties).to(logits.device)
        found = logits[at]  # an id that occurs twice is written twice with one value: the penalty counts once
        logits[at] = torch.where(found > 0, found / penalty, found * penalty)
    for banned, members in _banned(rows).items():
        table = _id_table(banned, vocab, str(logits.device))
        if len(members) == len(rows):
            logits[:, table] = float("-inf")
        else:
            logits[torch.tensor(members, device=logits.device)[:, None], table] = float("-inf")
    return logits


def _banned(rows: Sequence[Row]) -> dict[tuple[int, ...], list[int]]:
    """Lists of ids that may not be drawn, with the rows they hold for."""
    lists: dict[tuple[int, ...], list[int]] = {}
    for n, row in enumerate(rows):
        settings, count = row.settings, row.history.count
        if settings.suppress:
            lists.setdefault(settings.suppress, []).append(n)
        if settings.suppress_first and count == 0:
            lists.setdefault(settings.suppress_first, []).append(n)
        if settings.ends and count < settings.min_tokens:
            lists.setdefault(settings.ends, []).append(n)
    return lists


@lru_cache(maxsize=256)
def _id_table(ids: tuple[int, ...], vocab: int, device: str) -> Tensor:
    if min(ids) < 0 or max(ids) >= vocab:
        raise BadRequest(f"suppressed ids reach from {min(ids)} to {max(ids)}, the vocabulary has {vocab}", "suppress")
    return torch.tensor(sorted(set(ids)), device=device)


# -------------------------------------------------------------------------------------------------------------------- draws


def _draw_row(logits: Tensor, settings: Settings, number: float) -> Tensor:
    """One draw from logits f32 [vocab]: the id where the weights, summed in id order, pass `number` of their total; i64 []."""
    vocab, best = len(logits), logits.max()
    top_k = min(settings.top_k or vocab, vocab)
    if top_k == vocab and settings.top_p >= 1.0:
        ids, weights = None, ((logits - best) / _heat(settings)).exp()
    else:
        ids = _kept(logits, best, top_k, settings)
        weights = ((logits[ids].double() - best) / _heat(settings)).exp()
    sums = weights.cumsum(0, dtype=torch.float64)
    place = torch.searchsorted(sums, number * sums[-1], right=True)
    place = torch.minimum(place, torch.searchsorted(sums, sums[-1]))  # rounding must not pass the last id with a weight
    return place if ids is None else ids[place]


def _heat(settings: Settings) -> float:
    """What logits are divided by. So close to 0 the ids with the largest logit share all weight, whatever the number is."""
    return max(settings.temperature, _COLDEST)


def _kept(logits: Tensor, best: Tensor, top_k: int, settings: Settings) -> Tensor:
    """The ids that remain after top-k and top-p, in order. Of ids with the lowest kept logit, the lowest ids stay."""
    vocab = len(logits)
    count = min(vocab, max(_CANDIDATES, top_k if top_k < vocab else 0))
    lowest, stays = _cut(logits, best, top_k, count, settings)
    if stays == count < min(top_k, vocab):  # a flat row: its cut lies beyond the candidates
        lowest, stays = _cut(logits, best, top_k, vocab, settings)
    ids = (logits >= lowest).nonzero()[:, 0]
    surplus = len(ids) - stays
    if surplus:
        ties = (logits[ids] == lowest).nonzero()[:, 0]
        ids[ties[-surplus:]] = vocab
        ids = ids[ids < vocab]
    return ids


def _cut(logits: Tensor, best: Tensor, top_k: int, count: int, settings: Settings) -> tuple[Tensor, int]:
    """The smallest logit that stays and how many stay, looking at the `count` largest.

    top-p keeps an id if those before it sum to less than top_p of what top-k has left.
    """
    largest = logits.topk(count).values[:top_k]
    if settings.top_p >= 1.0:
        return largest[-1], len(largest)
    mass = ((largest.double() - best) / _heat(settings)).exp()
    if top_k <= count:
        total = mass.sum()
    else:
        total = ((logits - best) / _heat(settings)).exp().sum(dtype=torch.float64)
    stays = max(1, int((mass.cumsum(0) - mass < settings.top_p * total).sum()))
    return largest[stays - 1], stays
