"""Which ranks are up, by what they say and by their deaths; who waits for all of them is told as soon as that is decided."""

from __future__ import annotations

import asyncio

import pytest

from mstarc_runtime.abi.linked import RankLink
from mstarc_runtime.abi.messages import ABI, Ready
from mstarc_runtime.conductor.ranks import START_TRIES, Ranks


def two() -> Ranks:
    return Ranks([RankLink(rank=0, label="voice"), RankLink(rank=1)])


def said(rank: int, abi: int = ABI) -> Ready:
    return Ready(rank, 1, abi, {})


async def decided(ranks: Ranks) -> bool:
    try:
        await asyncio.wait_for(ranks.decided(), 0.01)
    except TimeoutError:
        return False
    return True


async def test_all_are_up_until_one_dies_and_again_once_it_is_back() -> None:
    ranks = two()
    assert ranks.why_not() == "not up: rank 0 (voice), rank 1"
    assert not ranks.add(1, said(1)) and not await decided(ranks)
    assert ranks.add(0, said(0)) and ranks.all_up and ranks.why_not() == "" and await decided(ranks)
    for _ in range(START_TRIES + 1):  # one that has been up before is not given up
        ranks.lose(0, "killed")
        assert not ranks.all_up and ranks.why_not() == "not up: rank 0 (voice)" and not await decided(ranks)
    assert ranks.add(0, said(0)) and ranks.all_up


async def test_one_that_dies_while_it_starts_is_given_up() -> None:
    ranks = two()
    ranks.add(1, said(1))
    for _ in range(START_TRIES - 1):
        ranks.lose(0, "signal 11")
    assert not ranks.fatal and not await decided(ranks)
    ranks.lose(0, "signal 11")
    assert ranks.fatal == f"rank 0 died {START_TRIES} times while it was starting; at last signal 11"
    assert await decided(ranks)
    ranks.add(0, said(0))
    assert not ranks.all_up and ranks.why_not() == ranks.fatal


@pytest.mark.parametrize("abi", [ABI - 1, ABI + 1])
async def test_one_of_another_abi_is_known_at_once(abi: int) -> None:
    ranks = two()
    ranks.add(0, said(0, abi))
    ranks.give_up("later")
    assert ranks.fatal == f"rank 0 speaks ABI {abi}, the conductor {ABI}" and await decided(ranks)
