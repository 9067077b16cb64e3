"""Which tile a program of `attend_prompts_gluon` takes, and the blocks that the tile sees: told by the lengths on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BLOCK = gl.constexpr(64)  # members of a tile's half, entries of a block and of a page
TILE = gl.constexpr(128)
SHARE_MIN = gl.constexpr(4)  # blocks of a part, at least: joining costs about as much


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for."""

    kv_heads: int
    group: int  # query heads that share a KV head
    dim: int
    stages: int
    lanes: int  # requests or more, a power of two
    parted: bool  # tiles may have several parts
    ragged: bool
    masked: bool
    causal: bool


class Given(NamedTuple):
    """Lengths and rows of the requests in memory, see `attend_prompt`; `splits`: parts of a tile, at most."""

    length: Any
    active: Any
    starts: Any
    requests: Any
    rows_each: Any
    splits: Any


class Work(NamedTuple):
    """A part of a tile: the blocks [begin, end).

    There are `whole` pages, whole own blocks up to `full`, then a page of `begun` entries (0: there is none), then own blocks again. Own
    rows of the request begin at packed row `first`.
    """

    request: Any
    kv_head: Any
    tile: Any
    split: Any
    splits: Any
    begin: Any
    end: Any
    whole: Any
    full: Any
    begun: Any
    first: Any
    rows: Any
    entries: Any
    live: Any


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def work_of(given, item, SHAPE: gl.constexpr):
    """The part that is number `item`, and whether there is one. The last tiles come first: with a causal mask they are the longest."""
    lanes: gl.constexpr = gl.BlockedLayout([SHAPE.lanes // 32], [32], [4], [0])
    lane = gl.arange(0, SHAPE.lanes, layout=lanes)
    there = lane < given.requests
    if SHAPE.ragged:
        firsts = gl.load(given.starts + lane, mask=there, other=0)
        counts = gl.load(given.starts + lane + 1, mask=there, other=0) - firsts
    else:
        firsts = lane * given.rows_each
        counts = gl.where(there, given.rows_each, 0)
    lengths = gl.load(given.length + lane, mask=there, other=0)
    lives = there
    if SHAPE.masked:
        lives = gl.load(given.active + lane, mask=there, other=0) != 0
        lengths = gl.where(lives, lengths, 0)
    tiles = gl.cdiv(counts * SHAPE.group, TILE)
    after = gl.associative_scan(tiles, 0, _add)
    before = after - tiles
    split, pair = item % given.splits, item // given.splits
    kv_head = pair % SHAPE.kv_heads
    which = gl.sum(tiles, 0) - 1 - pair // SHAPE.kv_heads
    here = (after > which) & (before <= which)
    request = gl.sum(gl.where(here, lane, 0), 0)
    tile = which - gl.sum(gl.where(here, before, 0), 0)
    first = gl.sum(gl.where(here, firsts, 0), 0)
    rows = gl.sum(gl.where(here, counts, 0), 0)
    entries = gl.sum(gl.where(here, lengths, 0), 0)
    live = gl.sum(gl.where(here & lives, 1, 0), 0) != 0
    seen, whole_rows = rows, rows // BLOCK
    if SHAPE.causal:
        seen = gl.minimum(rows, (tile * TILE + TILE - 1) // SHAPE.group + 1)
        whole_rows = gl.minimum(rows, tile * TILE // SHAPE.group + 1) // BLOCK
    whole = entries // BLOCK
    blocks = gl.cdiv(entries, BLOCK) + gl.cdiv(seen, BLOCK)
    splits = gl.minimum(given.splits, gl.maximum(blocks // SHARE_MIN, 1))
    begin, end = blocks * split // splits, blocks * (split + 1) // splits
    work = Work(
        request, kv_head, tile, split, splits, begin, end, whole, whole + whole_rows, entries % BLOCK, first, rows, entries, live,
    )  # fmt: skip
    return work, which >= 0


@gluon.jit
def is_page(work, block):
    """Whether a block is a page."""
    return (block < work.whole) | ((block == work.full) & (work.begun > 0))


@gluon.jit
def page_of(work, table, block):
    """The page that a block is, if it is one."""
    return gl.load(table + gl.minimum(block, work.whole), mask=is_page(work, block), other=0)


@gluon.jit
def _own_block(work, block):
    """The first own row that an own block is for."""
    return (block - work.whole - gl.where((block >= work.full) & (work.begun > 0), 1, 0)) * BLOCK


@gluon.jit
def own_row(work, block):
    """The own row at which an own block starts: what fills no block is preceded by rows that are known."""
    return gl.minimum(_own_block(work, block), gl.maximum(work.rows - BLOCK, 0))


@gluon.jit
def shift_of(work, block):
    """How many entries at the start of a block are not its own."""
    page = gl.where(block < work.whole, 0, BLOCK - work.begun)
    return gl.where(is_page(work, block), page, _own_block(work, block) - own_row(work, block))
