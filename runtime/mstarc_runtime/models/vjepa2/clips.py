"""Frames of a video -> the clip that an encoder takes: u8 [T, H, W, 3] -> f32 [T, 3, size, size]. No torch.

The short side becomes size · 256 / 224 (bilinear between pixel centres, no antialias, whole values), the middle is cut out,
and values are normalised with ImageNet's mean and deviation. Source: the evaluation transform of the public implementation.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Places: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]"

_ONE = 2048  # a share of 1, in fixed point
_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
_SCALE = (np.float32(1 / 255) / _DEVIATION)[:, None, None]
_SHIFT = (_MEAN / _DEVIATION)[:, None, None]


def sampled(frames: int, wanted: int) -> list[int]:
    """Indices of `wanted` frames at equal distances from the first one on; all of them if there are no more."""
    if frames <= wanted:
        return list(range(frames))
    return [k * frames // wanted for k in range(wanted)]


def clip_of(frames: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
    """The frames as the encoder takes them, f32 [T, 3, size, size]."""
    height, width = frames.shape[1:3]
    short = int(size * 256 / 224)
    rows = short if height <= width else int(short * height / width)
    columns = short if width <= height else int(short * width / height)
    out = np.empty((len(frames), 3, size, size), np.float32)
    down, across = _places(height, rows, size), _places(width, columns, size)
    for frame, made in zip(frames, out, strict=True):  # frame by frame: what is in flight stays small
        np.multiply(_resized(frame, down, across).transpose(2, 0, 1), _SCALE, out=made)
        made -= _SHIFT
    return out


def _places(count: int, resized: int, size: int) -> Places:
    """For the `size` middle pixels of an axis that is resized: the two pixels each lies between, and their shares."""
    start = round((resized - size) / 2)
    at = ((np.arange(start, start + size) + 0.5) * (count / resized) - 0.5).astype(np.float32)
    first = np.floor(at).astype(np.int64)
    share = np.clip(at - first.astype(np.float32), 0, 1)
    near, far = np.rint((1 - share) * _ONE).astype(np.int32), np.rint(share * _ONE).astype(np.int32)
    return np.clip(first, 0, count - 1), np.clip(first + 1, 0, count - 1), near, far


def _resized(frame: NDArray[np.uint8], down: Places, across: Places) -> NDArray[np.int32]:
    """The middle of the resized frame, i32 [size, size, 3] of 0..255: in fixed point, as the reference's resize computes."""
    left, right, near, far = across
    above, below, upper, lower = down
    rows, places = np.unique(np.concatenate([above, below]), return_inverse=True)
    flat = frame[rows].reshape(len(rows), -1)  # colours of a row one behind another: whole rows are taken at once
    mixed = _taken(flat, left) * np.repeat(near, 3)
    mixed += _taken(flat, right) * np.repeat(far, 3)
    mixed >>= 4
    top, bottom = (np.take(mixed, half, axis=0) for half in np.split(places, 2))
    top *= upper[:, None]
    top >>= 16
    bottom *= lower[:, None]
    bottom >>= 16
    top += bottom
    top += 2
    top >>= 2
    return top.reshape(len(above), len(left), 3)


def _taken(flat: NDArray[np.uint8], columns: NDArray[np.int64]) -> NDArray[np.int32]:
    """Pixels of rows [rows, width · 3] at these columns, i32 [rows, columns · 3]."""
    return np.take(flat, (columns[:, None] * 3 + np.arange(3)).ravel(), axis=1).astype(np.int32)
