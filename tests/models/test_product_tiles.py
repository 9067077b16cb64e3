"""Tiles of products on Hopper: each has work for most multiprocessors, and more than one turn for none."""

from __future__ import annotations

import pytest

from mstarc_runtime.models.product_cuda import Tile, tile_of

PROCESSORS = 132


def blocks(tile: Tile, rows: int, outs: int) -> int:
    """What a launch has: whole clusters over all rows and outputs."""
    clusters = -(-rows // (128 * tile.down)) * -(-outs // (tile.columns * tile.across))
    return clusters * tile.down * tile.across * tile.halves


def test_tiles_fill_the_device_once() -> None:
    taken = 0
    for rows in range(1, 4000, 41):
        for outs in range(16, 6000, 208):
            for ins in (128, 1152, 4304):
                tile = tile_of(rows, outs, ins)
                if tile is not None:
                    taken += 1
                    assert PROCESSORS * 3 // 4 <= blocks(tile, rows, outs) <= PROCESSORS
                    assert tile.columns % 16 == 0
                    assert 64 <= tile.columns <= 256
                    assert tile.halves == 1 or ins >= 2048
    assert taken > 100


@pytest.mark.parametrize(
    ("rows", "outs", "ins", "tile"),
    [
        (768, 3456, 1152, Tile(160)),
        (768, 1152, 1152, Tile(64, 1, 2)),
        (768, 4304, 1152, Tile(208)),
        (768, 1152, 4304, Tile(128, 2, 1, 2)),
        (256, 3456, 1152, None),
        (968, 32768, 2048, None),
    ],
)
def test_tiles_of_the_camera_tower(rows: int, outs: int, ins: int, tile: Tile | None) -> None:
    """As measured: `tests/bench`'s log."""
    assert tile_of(rows, outs, ins) == tile
