"""Camera images -> pixels of the vision tower: u8 [H, W, 3] -> f32 [3, size, size] in [-1, 1]. No torch.

The image keeps its aspect: it is resized to fit (bilinear, no antialias) and centred on -1, with the odd row or column of padding at
the end. Source: the public LeRobot implementation.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstarc_runtime.errors import BadRequest

MAX_SIDE = 8192  # pixels of a camera image
_NPY = b"\x93NUMPY"


def pixels(image: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
    """The image as the tower takes it, f32 [3, size, size]."""
    height, width = image.shape[:2]
    ratio = max(width / size, height / size)
    rows, columns = max(1, int(height / ratio)), max(1, int(width / ratio))
    small = _resized(np.asarray(image / np.float32(255) * 2 - 1, np.float32), rows, columns)
    padded = np.full((size, size, 3), -1, np.float32)
    top, left = (size - rows) // 2, (size - columns) // 2
    padded[top : top + rows, left : left + columns] = small
    return np.ascontiguousarray(padded.transpose(2, 0, 1))


def _resized(image: NDArray[np.float32], rows: int, columns: int) -> NDArray[np.float32]:
    """[H, W, 3] -> [rows, columns, 3]: bilinear between pixel centres."""
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
        low, high = image.take(first, axis), image.take(np.minimum(first + 1, count - 1), axis)
        image = low + (high - low) * share
    return image


def read_image(value: Any, field: str) -> NDArray[np.uint8]:
    """An image input as u8 [H, W, 3]: an array, the bytes of a .npy file, or a part whose `data` is one of these.

    Raises BadRequest with `field` if it is something else, or an image that is empty or larger than MAX_SIDE.
    """
    data = getattr(value, "data", value) if not isinstance(value, np.ndarray) else value
    if isinstance(data, bytes | bytearray | memoryview):
        data = _from_npy(bytes(data), field)
    if not isinstance(data, np.ndarray):
        raise BadRequest(f"`{field}` is a {type(value).__name__}, not an image", field)
    if data.dtype != np.uint8 or data.ndim != 3 or data.shape[2] != 3:
        raise BadRequest(f"`{field}` must be u8 [height, width, 3] (RGB), got {data.dtype} {list(data.shape)}", field)
    if not 1 <= min(data.shape[:2]) <= max(data.shape[:2]) <= MAX_SIDE:
        raise BadRequest(f"`{field}` is {data.shape[1]} x {data.shape[0]} pixels; sides are 1 to {MAX_SIDE}", field)
    return data


def _from_npy(data: bytes, field: str) -> NDArray[Any]:
    if not data.startswith(_NPY):
        raise BadRequest(f"`{field}` is no .npy file; compressed images must be decoded by the client", field)
    try:
        found: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise BadRequest(f"`{field}` is a broken .npy file: {error}", field) from error
    return found
