"""Which ranks are up, and why one is not: from what they say and from their deaths."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mstarc_runtime.abi.linked import RankLink
from mstarc_runtime.abi.messages import ABI, Ready

START_TRIES = 3  # deaths in a row of a rank that has never been ready: then the start is given up


class Ranks:
    """up: what each rank that is ready has said of itself. fatal: why the ranks will never all be ready, or ""."""

    def __init__(self, links: Sequence[RankLink]) -> None:
        self.links = links
        self.up: dict[int, Ready] = {}
        self.fatal = ""
        self._decided = asyncio.Event()  # all are up, or never will be
        self._seen: set[int] = set()  # ranks that have been ready before
        self._stillborn: dict[int, int] = {}  # rank -> deaths before it was ready for the first time

    async def decided(self) -> None:
        """Until all are up, or it is known that they never will be."""
        await self._decided.wait()

    @property
    def all_up(self) -> bool:
        """Whether every rank is ready."""
        return len(self.up) == len(self.links) and not self.fatal

    def missing(self) -> list[RankLink]:
        """Those that are not up."""
        return [link for link in self.links if link.rank not in self.up]

    def why_not(self) -> str:
        """What is missing, in words; "" if nothing is."""
        missing = [f"rank {link.rank}" + (f" ({link.label})" if link.label else "") for link in self.missing()]
        return self.fatal or (f"not up: {', '.join(missing)}" if missing else "")

    def add(self, rank: int, said: Ready) -> bool:
        """A rank is ready. Whether all are there now."""
        if said.abi != ABI:
            self.give_up(f"rank {rank} speaks ABI {said.abi}, the conductor {ABI}")
        self.up[rank] = said
        self._seen.add(rank)
        if len(self.up) < len(self.links):
            return False
        self._decided.set()
        return True

    def give_up(self, why: str) -> None:
        """The ranks will never all be ready; the first reason counts."""
        self.fatal = self.fatal or why
        self._decided.set()

    def lose(self, rank: int, why: str) -> None:
        """A rank died. One that dies again and again while it starts is given up."""
        self.up.pop(rank, None)
        if rank not in self._seen:
            self._stillborn[rank] = self._stillborn.get(rank, 0) + 1
            if self._stillborn[rank] >= START_TRIES:
                self.give_up(f"rank {rank} died {START_TRIES} times while it was starting; at last {why}")
        if not self.fatal:
            self._decided.clear()
