"""Random programs over pools that are too small for all who run: what is swapped out and comes back changes no answer."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path

import pytest

from tests.codegen.agreement import random_program, two_ended
from tests.codegen.full_pools import agree_in_full_pools

SEEDS = tuple(islice((seed for seed in count() if two_ended(random_program(seed))), 8))


async def test_random_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = [await agree_in_full_pools(seed, tmp_path, monkeypatch) for seed in SEEDS]
    assert sum(each > 0 for each in moved) > len(SEEDS) / 2
