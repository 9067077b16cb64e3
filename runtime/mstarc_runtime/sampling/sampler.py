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
        with torch.inference_mode():
            if self._ids is None or self.count == len(self._ids):
                grown = torch.empty(max(64, 2 * self.count), dtype=torch.int64, device=drawn.device)
                grown[: self.count] = self.ids
                self._ids = grown
            self._ids[self.count] = drawn
            self.count += 1


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
    if random:
        chosen = rows if len(random) == len(rows) else [rows[n] for n in random]
        picked = logits if len(random) == len(rows) else logits[random]
        ids[random] = _stochastic(picked.double(), chosen)
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


def _stochastic(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Rows with a temperature, f64 [R, vocab] -> ids [R]."""
    device = logits.device
    temperature = torch.tensor([row.settings.temperature for row in rows], dtype=torch.float64, device=device)
    scores = (logits - logits.amax(dim=-1, keepdim=True)) / temperature[:, None]
    weights = scores.exp()
    vocab = logits.shape[1]
    limits = [(min(row.settings.top_k or vocab, vocab), row.settings.top_p) for row in rows]
    cut = [n for n, (top_k, top_p) in enumerate(limits) if top_k < vocab or top_p < 1.0]
    if cut:
        top_k = torch.tensor([limits[n][0] for n in cut], device=device)
        top_p = torch.tensor([limits[n][1] for n in cut], dtype=torch.float64, device=device)
        if len(cut) == len(rows):
            weights.masked_fill_(~_kept(scores, weights, top_k, top_p), 0.0)
        else:
            weights[cut] = weights[cut].masked_fill(~_kept(scores[cut], weights[cut], top_k, top_p), 0.0)
    total = weights.cumsum(dim=-1)
    number = torch.from_numpy(uniforms([row.key for row in rows])).to(device)
    found = torch.searchsorted(total, (number * total[:, -1])[:, None], right=True)[:, 0]
    last = vocab - 1 - (weights > 0).to(torch.uint8).flip(-1).argmax(dim=-1)
    return torch.minimum(found, last)  # rounding may leave no sum above number · total


def _kept(scores: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Which ids remain after top-k and top-p, bool [R, vocab]. top-p keeps an id if the larger ones sum to less than top_p."""
    vocab = scores.shape[1]
    limited = int(torch.where(top_k < vocab, top_k, 1).max())
    count = min(vocab, max(_CANDIDATES, limited))
    best, counts, enough = _cut(scores, weights, top_k, top_p, count)
    if count < vocab and not bool(enough.all()):  # flat rows: their cut lies beyond the candidates
        best, counts, _ = _cut(scores, weights, top_k, top_p, vocab)
    lowest = best.gather(1, (counts - 1)[:, None])
    kept = scores >= lowest
    surplus = kept.sum(dim=-1) - counts
    for n in surplus.nonzero()[:, 0].tolist():  # ties at the cut: the lowest ids stay
        ties = (scores[n] == lowest[n]).nonzero()[:, 0]
        kept[n, ties[len(ties) - int(surplus[n]) :]] = False
    return kept


def _cut(scores: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` largest scores in order [R, count], how many of them stay [R], and whether that is certain [R]."""
    best = scores.topk(count, dim=-1).values
    among = torch.arange(count, device=scores.device) < top_k[:, None]
    mass = best.exp() * among
    total = torch.where(top_k <= count, mass.sum(dim=-1), weights.sum(dim=-1))
    before = mass.cumsum(dim=-1) - mass
    stays = among & ((before < (top_p * total)[:, None]) | (top_p >= 1.0)[:, None])
    counts = stays.sum(dim=-1).clamp(min=1)
    return best, counts, (counts < count) | (top_k <= count) | (count == scores.shape[1])
