"""Numbers of a robot as the model takes and gives them: quantile normalisation, state bins, the prompt. No torch.

Source: the public openpi and LeRobot implementations. The task's letters are not lowered, values outside [-1, 1] are not clipped:
one below gives bin -1, one of 1 or more gives bin 255.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

BINS = 256
_SMALLEST_RANGE = 1e-8  # stands for the range of a number that never changed in the data


def normalise(values: ArrayLike, q01: ArrayLike, q99: ArrayLike) -> NDArray[np.float32]:
    """Robot units -> [-1, 1] between the 1 % and 99 % quantiles of the data: f32 [..., R]."""
    low, width = _range(q01, q99)
    return np.asarray(2 * (np.asarray(values, np.float32) - low) / width - 1, np.float32)


def unnormalise(actions: ArrayLike, q01: ArrayLike, q99: ArrayLike) -> NDArray[np.float32]:
    """Actions of the model f32 [..., max_action_dim] -> robot units [..., A]: the first A numbers, as many as quantiles."""
    low, width = _range(q01, q99)
    own = np.asarray(actions, np.float32)[..., : len(low)]
    return np.asarray((own + 1) / 2 * width + low, np.float32)


def _range(q01: ArrayLike, q99: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    low, high = np.asarray(q01, np.float32), np.asarray(q99, np.float32)
    width = high - low
    return low, np.where(width == 0, np.float32(_SMALLEST_RANGE), width)


def state_bins(state: ArrayLike) -> NDArray[np.int64]:
    """Normalised state [R] -> the bin of each number among 256 equal ones over [-1, 1]."""
    edges = np.linspace(-1, 1, BINS + 1)[:-1]
    found: NDArray[Any] = np.digitize(np.asarray(state, np.float32), edges) - 1
    return found.astype(np.int64)


def clean(task: str) -> str:
    """A task on one line, with spaces for underscores."""
    return task.strip().replace("_", " ").replace("\n", " ")


def prompt_text(task: str, state: ArrayLike) -> str:
    """The prompt of a task and a normalised state [R]."""
    bins = " ".join(map(str, state_bins(state)))
    return f"Task: {clean(task)}, State: {bins};\nAction: "
