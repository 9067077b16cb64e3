"""Pages that a request reserves: refused for good if no pool is large enough, for now if a rank is down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mstarc_runtime.abi.linked import CacheLink, ContextLink, Linked, RankLink, WalkLink
from mstarc_runtime.abi.messages import ABI, Ready
from mstarc_runtime.conductor.room import Room
from mstarc_runtime.errors import BadRequest, Unavailable

LINKED = Linked(
    abi=ABI, model="m", package="", digest="", ranks=[RankLink(rank=0)], config={}, nodes=[],
    caches=[CacheLink(name="kv", layers=1, heads=1, kv_heads=1, head_dim=8)],
    contexts=[ContextLink(name="main", cache="kv", max=64)],
    samplers=[], streams=[], walks=[WalkLink(name="w", rank=0, contexts=["main"])], externs={}, checkpoints=[],
)  # fmt: skip


def needs(entries: int) -> Any:
    return SimpleNamespace(peak={"main": entries})


def test_a_rank_that_is_down_is_not_a_pool_that_is_too_small() -> None:
    ready: dict[int, Ready] = {0: Ready(0, 1, ABI, {"kv": (4, 16)})}
    room = Room(LINKED, ready, lambda: True)
    assert room.pages_of(needs(33)) == {(0, "kv"): 3}
    with pytest.raises(BadRequest, match="needs 5 pages of cache `kv`; the pool has 4"):
        room.pages_of(needs(80))
    del ready[0]
    with pytest.raises(Unavailable, match="not up: rank 0"):
        room.pages_of(needs(33))
