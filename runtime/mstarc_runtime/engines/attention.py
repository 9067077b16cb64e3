"""Attention of a packed batch over paged contexts with torch's SDPA: a plan made once per call, run once per layer.

The requests of a batch are split into groups. A group is one attention kernel: either one request, or several with equally many
rows and similar context lengths, padded to the longest and masked. One request whose entries lie in a run of neighbouring pages
is read in place; all else is gathered into a workspace. The split changes speed only: a request's result depends on its own
entries and rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import PagedPool

# entries from which reading in place beats a shared gather, measured on a CPU, where a kernel costs 35 µs
IN_PLACE_MIN = 160
BATCH_ROWS_MAX = 8  # requests with more rows each are big enough to go alone
PAD_SLACK = 64  # entries of padding that are cheaper than another kernel


@dataclass(frozen=True, slots=True)
class Query:
    """One request of the batch: its rows first..first+rows-1 of the packed batch see `visible` entries of the context.

    `own` of these, the last ones, are the rows' own entries (those of an op that has just written them).
    """

    context: Context
    first: int
    rows: int
    visible: int
    own: int


@dataclass(frozen=True, slots=True)
class Group:
    """One kernel. Entries come from slots start..start+entries-1 (`pages` is None) or from `pages` [requests · n], padded.

    `bias` [requests, 1, rows, entries (+ rows)] is added to the scores: 0 or -inf; None = no mask, unless `is_causal`.
    """

    requests: int
    rows: int
    entries: int
    picks: slice | Tensor  # the group's rows in the packed batch
    start: int = 0
    pages: Tensor | None = None
    bias: Tensor | None = None
    is_causal: bool = False


class Workspace:
    """Scratch memory of gathers, one per engine: grows to the largest gather seen."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0)

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of that shape; valid until the next take."""
        count = 1
        for size in shape:
            count *= size
        if self._buffer.numel() < count or self._buffer.dtype != like.dtype or self._buffer.device != like.device:
            self._buffer = torch.empty(count, dtype=like.dtype, device=like.device)
        return self._buffer[:count].view(shape)


class Attention:
    """Planned attention of one batch over contexts of one pool. `fresh`: keys and values of the rows come by argument (frozen ops)."""

    def __init__(self, pool: PagedPool, queries: Sequence[Query], causal: bool, fresh: bool, space: Workspace) -> None:
        self._pool = pool
        self._fresh = fresh
        self._space = space
        self._groups = [_plan(pool, members, causal, fresh) for members in _split(queries)]

    def __call__(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, scale: float) -> Tensor:
        """q [ΣT, heads, head_dim]; k, v [ΣT, kv_heads, head_dim] of the rows if `fresh`. Gives [ΣT, heads, head_dim]."""
        given, q = q.dtype, q.to(self._pool.data.dtype)
        if len(self._groups) == 1:
            return self._one(self._groups[0], layer, q, k, v, scale).to(given)
        out = torch.empty_like(q)
        for group in self._groups:
            own_k = None if k is None else k[group.picks]
            own_v = None if v is None else v[group.picks]
            out[group.picks] = self._one(group, layer, q[group.picks], own_k, own_v, scale)
        return out.to(given)

    def _one(self, group: Group, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, scale: float) -> Tensor:
        keys, values = self._entries(group, layer)
        batch, rows = group.requests, group.rows
        if k is not None and v is not None:
            keys = torch.cat([keys, k.reshape(batch, rows, *k.shape[1:]).transpose(1, 2).to(keys.dtype)], 2)
            values = torch.cat([values, v.reshape(batch, rows, *v.shape[1:]).transpose(1, 2).to(values.dtype)], 2)
        if keys.shape[2] == 0:
            return torch.zeros_like(q)
        heads, kv_heads, dim = q.shape[1], keys.shape[1], q.shape[2]
        if rows == 1:  # the query heads of a kv head as its rows: keys are read once
            folded = q.reshape(batch, kv_heads, heads // kv_heads, dim)
            return F.scaled_dot_product_attention(folded, keys, values, attn_mask=group.bias, scale=scale).reshape(
                q.shape
            )
        spread = q.reshape(batch, rows, heads, dim).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            spread,
            keys,
            values,
            attn_mask=group.bias,
            is_causal=group.is_causal,
            scale=scale,
            enable_gqa=heads != kv_heads,
        )
        return mixed.transpose(1, 2).reshape(q.shape)

    def _entries(self, group: Group, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the group's entries, [requests, kv_heads, entries, head_dim] each."""
        data, kv_heads = self._pool.data[layer], self._pool.geometry.kv_heads
        if group.pages is None:  # one request, in place; no entries is a run too
            run = data[:, group.start : group.start + group.entries]
            both = run.expand(group.requests, -1, -1, -1)
            return both[:, :kv_heads], both[:, kv_heads:]
        size, dim = self._pool.page_size, self._pool.geometry.head_dim
        gathered = self._space.take((2 * kv_heads, len(group.pages), size * dim), data)
        torch.index_select(data.view(2 * kv_heads, -1, size * dim), 1, group.pages, out=gathered)
        both = gathered.view(2, kv_heads, group.requests, -1, dim)[:, :, :, : group.entries].transpose(1, 2)
        return both[0], both[1]


def _split(queries: Sequence[Query]) -> list[list[Query]]:
    """Queries by kernel: alone if long and in place, or with many rows; else with others of like length."""
    alone: list[list[Query]] = []
    shared: dict[tuple[int, bool], list[Query]] = {}
    for query in queries:
        in_place = query.visible >= IN_PLACE_MIN and query.context.run_start(query.visible) is not None
        if in_place or query.rows > BATCH_ROWS_MAX:
            alone.append([query])
        else:
            shared.setdefault((query.rows, query.visible == 0), []).append(query)
    buckets: list[list[Query]] = []
    for members in shared.values():
        members.sort(key=lambda query: query.visible)
        shortest = members[0].visible
        buckets.append([])
        for query in members:
            if query.visible > shortest * 3 // 2 + PAD_SLACK:
                buckets.append([])
                shortest = query.visible
            buckets[-1].append(query)
    return alone + [sorted(bucket, key=lambda query: query.first) for bucket in buckets]


def _plan(pool: PagedPool, members: list[Query], causal: bool, fresh: bool) -> Group:
    head, device = members[0], pool.data.device
    rows, entries = head.rows, max(query.visible for query in members)
    start = head.context.run_start(entries) if len(members) == 1 else None
    pages = None
    if entries == 0:
        start = 0
    elif start is None:
        count = pool.pages_for(entries)
        table = [_padded(query, count, pool) for query in members]
        pages = torch.tensor(table, dtype=torch.int64, device=device).view(-1)
    ragged = any(query.visible != entries for query in members)
    square = causal and not ragged and (entries if fresh else entries - head.own) == 0 and (fresh or head.own == rows)
    bias = None
    if ragged or (causal and rows > 1 and not square and (fresh or head.own > 0)):
        bias = _bias(pool, members, entries, causal, fresh)
    return Group(len(members), rows, entries, _picks(members, device), start or 0, pages, bias, square and rows > 1)


def _picks(members: list[Query], device: torch.device) -> slice | Tensor:
    """The rows of the members in the packed batch."""
    first = members[0].first
    rows = [query.first + row for query in members for row in range(query.rows)]
    if rows == list(range(first, first + len(rows))):
        return slice(first, first + len(rows))
    return torch.tensor(rows, device=device)


def _padded(query: Query, count: int, pool: PagedPool) -> list[int]:
    """A page table of `count` pages. The padding repeats a page of the request itself, so nobody else's values are read."""
    used = query.context.pages[: pool.pages_for(query.visible)]
    return used + used[:1] * (count - len(used))


def _bias(pool: PagedPool, members: list[Query], entries: int, causal: bool, fresh: bool) -> Tensor:
    """Scores' bias [requests, 1, rows, entries (+ rows if fresh)]: -inf where a row may not look."""
    rows, device = members[0].rows, pool.data.device
    row = torch.arange(rows, device=device)[:, None]
    entry = torch.arange(entries, device=device)
    visible = torch.tensor([query.visible for query in members], device=device)[:, None, None]
    own = torch.tensor([query.own for query in members], device=device)[:, None, None]
    limit = torch.where(own > 0, visible - own + row + 1, visible + 0 * row) if causal else visible.expand(-1, rows, 1)
    seen = (entry < limit).expand(-1, rows, -1)
    if fresh:
        among = row >= row.T if causal else torch.ones(rows, rows, dtype=torch.bool, device=device)
        seen = torch.cat([seen, among.expand(len(members), -1, -1)], 2)
    bias = torch.zeros(seen.shape, dtype=pool.data.dtype, device=device)
    return bias.masked_fill_(~seen, float("-inf"))[:, None]
