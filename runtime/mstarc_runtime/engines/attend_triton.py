"""Attention over paged contexts as Triton kernels: lengths and page tables are read on the device, shapes alone fix the launch.

One kernel serves decode steps (one row per request), blocks of rows (flow steps, frames) and ragged prefill; where they were measured to
be faster, `attend_rows_triton` takes blocks of rows, and on Hopper `attend_frames` those of frames, `attend_prompts` prompts. A program
takes one KV head of one request, a tile of its query rows (all query heads of the KV head, so keys are read once) and one part of its
context: the entries are split among programs so that a small batch still fills the GPU, and `combine` joins the parts (the
"flash-decoding" scheme). Softmax runs online in f32, in base 2. The rows' own keys and values come by argument, never through
memory, so the same launch can append them to the pages without a race.

What a mask hides is never loaded: entries beyond a length may hold anything, NaN included, and pages need no zeroing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from mstarc_runtime.engines import attend_frames, attend_prompts
from mstarc_runtime.engines.attend_rows_triton import attend_rows, join_rows
from mstarc_runtime.engines.attend_tiles_triton import attend_tile, combine

PROGRAMS = 132  # one for each multiprocessor of an H200, which runs one, two or four at once by their size
DECODE_TILE = 16  # the smallest tile: that of decode steps
ROWS_TILE = 64  # that of blocks of rows; `attend_rows_triton` where it is faster
JOINED = 1024  # numbers of the results that one program joins
REGISTERS = 128  # of a thread, so that four programs of rows run on a multiprocessor at once
SPLITS_MAX = 32
LOG2_E = math.log2(math.e)


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

    data [2 · kv_heads, slots, head_dim] is one layer of a pool; q [B·E, heads, head_dim], k and v [B·E, kv_heads, head_dim] with the
    last dim dense; table i32 [B, P], length i32 [B], active bool [B]. Row i of a slot sees the entries [0, length) and own rows
    up to i (`causal`) or all own rows. Unless `frozen`, own rows become the entries length..length+E-1 of active slots. k and v None:
    the context alone is seen (cross-attention). A slot that is not active sees only its own rows and writes nothing.
    """
    return _launch(
        data,
        q,
        k,
        v,
        table,
        length,
        active,
        None,
        rows_per_slot,
        page_size,
        causal,
        not frozen and k is not None,
        scale,
    )


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

    `most_rows` is the largest number of rows of a request, known to the host; it sizes the launch.
    """
    return _launch(
        data, q, k, v, table, length, None, starts, most_rows, page_size, causal, not frozen and k is not None, scale
    )


def _launch(
    data: Tensor,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    table: Tensor,
    length: Tensor,
    active: Tensor | None,
    starts: Tensor | None,
    rows: int,
    page_size: int,
    causal: bool,
    append: bool,
    scale: float,
) -> Tensor:
    """Frames and prompts go to kernels of their own where those take them."""
    if not len(q):
        return torch.empty_like(q)
    scale2 = scale * LOG2_E
    if k is not None and v is not None:
        if starts is None and not causal and attend_frames.takes(data, q, k, v, rows, page_size, scale):
            return attend_frames.attend_frames(
                data, q, k, v, table, length, active, rows=rows, append=append, scale=scale2, programs=PROGRAMS
            )
        if attend_prompts.takes(data, q, k, v, rows, page_size, scale):
            return attend_prompts.attend_prompts(
                data, q, k, v, table, length, active, starts,
                rows=rows, causal=causal, append=append, scale=scale2, programs=PROGRAMS,
            )  # fmt: skip
    return _launch_tiles(data, q, k, v, table, length, active, starts, rows, page_size, causal, append, scale2)


@dataclass(frozen=True, slots=True)
class _Cut:
    """How attention is cut into programs: a tile of rows x heads of one KV head, of `tiles`, over one of `splits` parts of the context,
    in blocks of entries. warps, stages: of a program. by_pages: as `attend_rows` takes it."""

    tile: int
    tiles: int
    block: int
    splits: int
    warps: int
    stages: int
    by_pages: bool


def _cut(data: Tensor, table: Tensor, members: int, kv_heads: int, page_size: int, own: bool, scale: float) -> _Cut:
    """members: rows x query heads of a KV head, at most; kv_heads: those of all requests; own: the rows' own keys are seen, too."""
    dim = data.shape[2]
    dim_pad = _padded(dim)
    tile, block, warps, stages = _blocking(members, dim_pad, data.dtype)
    by_pages = data.is_contiguous() and scale > 0 and _by_pages(tile, dim, page_size, data.dtype)
    if by_pages:
        tile, block, warps, stages = ROWS_TILE, page_size, 4, 3
    tiles = triton.cdiv(members, tile)
    at_once = PROGRAMS * (4 if tile == DECODE_TILE or by_pages else 1 if dim_pad > 128 else 2)
    blocks = triton.cdiv(table.shape[1] * page_size, block)
    splits = _splits(tiles * kv_heads, blocks, at_once)
    if by_pages and blocks > 2 * SPLITS_MAX:
        splits = max(2, splits)  # the last programs of a long context have little left to wait for
    return _Cut(tile, tiles, block, splits + (splits > 1 and own), warps, stages, by_pages)


def _launch_tiles(
    data: Tensor,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    table: Tensor,
    length: Tensor,
    active: Tensor | None,
    starts: Tensor | None,
    rows: int,
    page_size: int,
    causal: bool,
    append: bool,
    scale: float,
) -> Tensor:
    """The kernels of this module, or `attend_rows`. scale: times log2(e)."""
    all_rows, heads, dim = q.shape
    kv_heads, requests = data.shape[0] // 2, len(length)
    group = heads // kv_heads
    cut = _cut(data, table, rows * group, requests * kv_heads, page_size, k is not None, scale)
    part = weight = out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if cut.splits > 1:
        part = torch.empty((cut.splits, all_rows, heads, dim), dtype=torch.float32, device=q.device)
        weight = torch.empty((cut.splits, all_rows, heads, 2), dtype=torch.float32, device=q.device)
    own_k, own_v = (q, q) if k is None or v is None else (k, v)
    given = {
        "q": q,
        "k": own_k,
        "v": own_v,
        "data": data,
        "table": table,
        "length": length,
        "active": length if active is None else active,
        "starts": length if starts is None else starts,
        "out": out,
        "part": part,
        "weight": weight,
        "scale": scale,
        "rows_each": rows,
        "all_rows": all_rows,
        "q_row": q.stride(0),
        "q_head": q.stride(1),
        "k_row": own_k.stride(0),
        "k_head": own_k.stride(1),
        "v_row": own_v.stride(0),
        "v_head": own_v.stride(1),
        "table_row": table.stride(0),
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "DIM": dim,
        "PAGE": page_size,
        "TILE": cut.tile,
        "SPLITS": cut.splits,
        "RAGGED": starts is not None,
        "MASKED": active is not None,
        "OWN": k is not None,
        "CAUSAL": causal and rows > 1,
        "APPEND": append,
        "PRECISION": "ieee" if data.dtype == torch.float32 else "tf32",
        "num_warps": cut.warps,
    }
    grid = (cut.tiles, requests * kv_heads, cut.splits)
    if cut.by_pages:
        attend_rows[grid](
            **given,
            paged=TensorDescriptor.from_tensor(data.view(-1, dim), [page_size, dim]),
            slots=data.shape[1],
            STAGES=cut.stages,
            maxnreg=REGISTERS,
        )
    else:
        attend_tile[grid](
            **given, data_head=data.stride(0), DIM_PAD=_padded(dim), BLOCK=cut.block, num_stages=cut.stages
        )
    if cut.splits > 1:
        _join(part, weight, out, cut.by_pages)
    return out


def _join(part: Tensor, weight: Tensor, out: Tensor, by_pages: bool) -> None:
    """The parts f32 [splits, rows, heads, head_dim] with their weights f32 [splits, rows, heads, 2] -> `out` [rows, heads, head_dim]."""
    splits, dim = part.shape[0], out.shape[2]
    row_heads = out.shape[0] * out.shape[1]
    if by_pages:
        several = max(1, JOINED // dim)
        join_rows[(triton.cdiv(row_heads, several),)](
            part, weight, out, row_heads, DIM=dim, BLOCK=several, SPLITS=splits, num_warps=4
        )
        return
    dim_pad = _padded(dim)
    combine[(row_heads,)](
        part,
        weight,
        out,
        row_heads,
        DIM=dim,
        DIM_PAD=dim_pad,
        SPLITS=splits,
        SPLITS_PAD=triton.next_power_of_2(splits),
        num_warps=2 if dim_pad <= 128 else 4,
    )


def _padded(dim: int) -> int:
    """The size of a head as a tile has it."""
    padded: int = triton.next_power_of_2(dim)
    return max(16, padded)


def _blocking(members: int, dim_pad: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Query rows x heads of a tile, entries of a block, warps and pipeline stages.

    They fit registers and shared memory of sm_90; 16-bit ones are the fastest of `tests.bench.attend_sweep` on an H200.
    """
    wide = dim_pad >= 128
    tile = max(DECODE_TILE, triton.next_power_of_2(members))
    if dtype == torch.float32:
        return min(32, tile), 32, 8 if wide else 4, 1
    if tile < 64:
        return tile, 64, 2 if tile == DECODE_TILE and dim_pad <= 128 else 4, 3 if dim_pad <= 128 else 2
    if dim_pad > 128:
        return 64, 64, 8 if members <= 512 else 4, 2
    return (64, 64, 8, 3) if wide else (64, 128, 4, 2)


def _by_pages(tile: int, dim: int, page_size: int, dtype: torch.dtype) -> bool:
    """Whether `attend_rows` takes it: where it was measured to be faster."""
    return tile == ROWS_TILE and dim == 64 and page_size == 64 and dtype != torch.float32


def _splits(programs: int, blocks: int, at_once: int) -> int:
    """Shares of a context, so that there are as many programs as the GPU runs at once; no more than it can have blocks."""
    return max(1, min(SPLITS_MAX, blocks, at_once // programs))
