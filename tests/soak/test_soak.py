"""The soak in its short forms, half a minute each: four models; one whose pool is full. The long ones: see `python -m tests.soak -h`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.soak import soak


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_mixed_requests_with_cancels_and_kills(tmp_path: Path) -> None:
    report = await soak(["hello", "pi05", "vjepa2_ac", "orpheus"], tmp_path, 120, seed=1, kill_every=30)
    print("\n".join(report.lines()))
    assert report.wrong == []
    assert report.kills and {"ok", "cancelled", "left"} <= report.ends.keys()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_full_pools_with_cancels_and_kills(tmp_path: Path) -> None:
    report = await soak(["orpheus"], tmp_path, 50, seed=2, kill_every=20, full=True)
    print("\n".join(report.lines()))
    assert report.wrong == []
    assert report.swapped and {"ok", "cancelled", "left"} <= report.ends.keys()
