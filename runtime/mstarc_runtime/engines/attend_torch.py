"""Attention over paged contexts in plain torch with fixed shapes: what the Triton kernels are proven equal to, and the CPU path.

Lengths and page tables are tensors and nothing is read back, so a call may be captured. Every slot gathers its whole page table;
what a mask hides is zeroed first, because a page may hold anything (NaN included) beyond a context's length.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def attend_slots(
    data: Tensor,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    table: Tensor,
    length: Tensor,
    active: Tensor | None,
    *,
    rows_per_slot: int,
    page_size: int,
    causal: bool,
    frozen: bool,
    scale: float,
) -> Tensor:
    """Attention of B slots with `rows_per_slot` = E rows each; returns [B·E, heads, head_dim] in the dtype of q.

    data [2 · kv_heads, slots, head_dim] is one layer of a pool; q [B·E, heads, head_dim], k and v [B·E, kv_heads, head_dim];
    table i32 [B, P], length i32 [B], active bool [B] (None = all). Row i of a slot sees the entries [0, length) and own rows up to i
    (`causal`) or all own rows. Unless `frozen`, own rows become the entries length..length+E-1 of active slots. k and v None: the
    context alone is seen (cross-attention). A slot that is not active sees only its own rows and writes nothing.
    """
    batch, rows = len(length), rows_per_slot
    seen_length = length if active is None else torch.where(active, length, 0)
    kv_heads, dim = data.shape[0] // 2, data.shape[2]
    pages = data.view(2 * kv_heads, -1, page_size, dim)[:, table.long()]  # [2 · kv_heads, B, P, page_size, head_dim]
    entries = pages.reshape(2 * kv_heads, batch, -1, dim).transpose(0, 1).to(q.dtype)
    seen = (torch.arange(entries.shape[2], device=data.device) < seen_length[:, None])[
        :, None, None
    ]  # [B, 1, 1, entries]
    entries = entries.masked_fill(~seen.squeeze(1).unsqueeze(-1), 0.0)
    keys, values = entries[:, :kv_heads], entries[:, kv_heads:]
    mask = seen.expand(-1, 1, rows, -1)
    if k is not None and v is not None:
        keys = torch.cat([keys, _by_slot(k.to(data.dtype), rows).to(q.dtype)], 2)
        values = torch.cat([values, _by_slot(v.to(data.dtype), rows).to(q.dtype)], 2)
        among = torch.ones(rows, rows, dtype=torch.bool, device=data.device)
        mask = torch.cat([mask, (among.tril() if causal else among).expand(batch, 1, -1, -1)], 3)
        if not frozen:
            append_slots(data, k, v, table, length, active, rows_per_slot=rows, page_size=page_size)
    mixed = F.scaled_dot_product_attention(
        _by_slot(q, rows), keys, values, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != kv_heads
    )
    if k is None:  # a source without entries gives zeros
        mixed = mixed.masked_fill((seen_length == 0)[:, None, None, None], 0.0)
    return mixed.transpose(1, 2).reshape(q.shape)


def attend_packed(
    data: Tensor,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    table: Tensor,
    length: Tensor,
    starts: Tensor,
    *,
    most_rows: int,
    page_size: int,
    causal: bool,
    frozen: bool,
    scale: float,
) -> Tensor:
    """As `attend_slots` for requests with unequal numbers of rows: request b has the rows starts[b]..starts[b+1]-1 (i32 [B + 1]).

    Rows from starts[B] on are nobody's: their results are zeros, and nothing of theirs is written. Every row is scored against every
    entry of every table, so this is for tests. `most_rows` is what kernels are launched for.
    """
    rows, batch, kv_heads = len(q), len(length), data.shape[0] // 2
    lane = lanes(starts, rows)
    entry = torch.arange(table.shape[1] * page_size, device=data.device)
    slots = table.long()[:, entry // page_size] * page_size + entry % page_size  # [B, entries]
    there = (entry < length[:, None]).view(-1)
    # [2 · kv_heads, B · entries, head_dim]
    entries = data[:, slots.view(-1)].masked_fill(~there[:, None], 0.0).to(q.dtype)
    owner = torch.arange(batch, device=data.device).repeat_interleave(len(entry))
    keys, values, mask = entries[:kv_heads], entries[kv_heads:], (lane[:, None] == owner) & there
    if k is not None and v is not None:
        keys, values = (
            torch.cat([old, new.to(data.dtype).to(q.dtype).transpose(0, 1)], 1) for old, new in ((keys, k), (values, v))
        )
        own = (lane[:, None] == lane) & (lane < batch)
        mask = torch.cat([mask, own.tril() if causal else own], 1)
        if not frozen:
            append_packed(data, k, v, table, length, starts, page_size=page_size)
    mixed = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=mask,
        scale=scale,
        enable_gqa=q.shape[1] != kv_heads,
    )
    return mixed[0].transpose(0, 1).masked_fill(~mask.any(1)[:, None, None], 0.0)


def append_packed(
    data: Tensor, k: Tensor, v: Tensor, table: Tensor, length: Tensor, starts: Tensor, *, page_size: int
) -> None:
    """Packed rows become entries of their requests (arguments as of `attend_packed`); rows that are nobody's write what row 0 does.

    Are there only such rows, they write what is there already.
    """
    row = torch.arange(len(k), device=data.device)
    row = torch.where(row < starts[-1], row, 0)
    lane = lanes(starts, len(k))[row].clamp(max=len(length) - 1)
    entry = length[lane] + row - starts[lane]
    places = table[lane, entry // page_size].long() * page_size + entry % page_size
    both = torch.cat([k, v], 1)[row].transpose(0, 1).to(data.dtype)
    data.index_copy_(1, places, torch.where(starts[-1] > 0, both, data[:, places]))


def positions_of(position: Tensor, starts: Tensor, rows: int, seq: bool) -> Tensor:
    """Positions of packed rows, i64 [rows], of requests that begin at `position` i32 [B]: one after the other if `seq`, else the same."""
    lane = lanes(starts, rows).clamp(max=len(position) - 1)
    found = position.long()[lane]
    return found + torch.arange(rows, device=starts.device) - starts.long()[lane] if seq else found


def lanes(starts: Tensor, rows: int) -> Tensor:
    """The request of each packed row, i64 [rows]; B for rows that are nobody's."""
    return torch.searchsorted(
        starts[1:].contiguous(), torch.arange(rows, device=starts.device, dtype=starts.dtype), right=True
    )


def append_slots(
    data: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    length: Tensor,
    active: Tensor | None,
    *,
    rows_per_slot: int,
    page_size: int,
) -> None:
    """Own rows become the entries length..length+E-1 of active slots (arguments as of `attend_slots`).

    Shapes are fixed, so slots that are not active write too: what the first active one writes, to the same place; if there is
    none, what is there already.
    """
    rows, room = rows_per_slot, table.shape[1] * page_size
    entry = (length.long()[:, None] + torch.arange(rows, device=data.device)).clamp(max=room - 1)
    places = table.long().gather(1, entry // page_size) * page_size + entry % page_size  # [B, E]
    both = torch.cat([k, v], 1).to(data.dtype).view(len(length), rows, data.shape[0], data.shape[2])
    if active is not None:
        writer = torch.where(active, torch.arange(len(length), device=data.device), active.to(torch.uint8).argmax())
        places, both = places[writer], both[writer]
        there = data[:, places.view(-1)].view(data.shape[0], *places.shape, -1).permute(1, 2, 0, 3)
        both = torch.where(active.any(), both, there)
    data.index_copy_(1, places.view(-1), both.flatten(0, 1).transpose(0, 1))


def _by_slot(x: Tensor, rows: int) -> Tensor:
    """[B·E, heads, head_dim] -> [B, heads, E, head_dim]."""
    return x.view(-1, rows, *x.shape[1:]).transpose(1, 2)
