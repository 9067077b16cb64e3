"""Camera images -> pixels of the vision tower: u8 [H, W, 3] -> f32 [3, size, size] in [-1, 1]. No torch.

An image keeps its aspect: it is resized to fit (bilinear, no antialias) and centred on -1, with the odd row or column of padding at
the end. Source: the public LeRobot implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstarc_runtime.abi.levels import Levels

_LEVEL, _LOWEST = 2 / 255, -1.0


def batch(images: Sequence[NDArray[np.uint8]], size: int) -> NDArray[np.float32] | Levels:
    """Images as the tower takes them, f32 [C, 3, size, size]. Where none has to be resized they stay u8 until they are on the device."""
    if all(image.shape[:2] == (size, size) for image in images):
        planes = np.stack([image[..., color] for image in images for color in range(3)])
        return Levels(planes.reshape(-1, 3, size, size), _LEVEL, _LOWEST)
    return np.stack([pixels(image, size) for image in images])


def pixels(image: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
    """The image as the tower takes it, f32 [3, size, size]."""
    height, width = image.shape[:2]
    ratio = max(width / size, height / size)
    rows, columns = max(1, int(height / ratio)), max(1, int(width / ratio))
    top, left = (size - rows) // 2, (size - columns) // 2
    padded = np.full((3, size, size), _LOWEST, np.float32)
    inside = padded[:, top : top + rows, left : left + columns]
    np.multiply(_resized(image, rows, columns).transpose(2, 0, 1), np.float32(_LEVEL), out=inside)
    inside += np.float32(_LOWEST)
    return padded


def _resized(image: NDArray[Any], rows: int, columns: int) -> NDArray[Any]:
    """[H, W, 3] -> [rows, columns, 3]: bilinear between pixel centres, in f32. What it does not change stays u8."""
    for axis, wanted in ((0, rows), (1, columns)):
        count = image.shape[axis]
        if count == wanted:
            continue
        scale = np.float32(count) / np.float32(wanted)  # places in f32, as the reference has them
        at = np.maximum(
            (np.arange(wanted, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5), np.float32(0)
        )
        first = np.minimum(at.astype(np.int64), count - 1)
        share = (at - first.astype(np.float32)).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        low = image.take(first, axis).astype(np.float32)
        image = image.take(np.minimum(first + 1, count - 1), axis).astype(np.float32)
        image -= low
        image *= share
        image += low
    return image
