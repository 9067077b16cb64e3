"""Externs and noise that give what a reference case of pi0.5 gives, in place of a tokenizer, a camera and a generator.

A request names its case and row by `task` ("actions_batch2 1"); its seed is the number of the pair in PAIRS.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mstarc_runtime.sampling.philox import DrawKey
from tests.models.vjepa2_cases import Cases

GOLDEN = Cases("pi05")
PAIRS = [(case, row) for case in GOLDEN.named("actions") for row in range(len(GOLDEN.tensor(case, "tokens")))]


def task_of(case: str, row: int) -> str:
    return f"{case} {row}"


def pair_of(task: str) -> tuple[str, int]:
    case, row = task.split()
    return case, int(row)


def prompt(task: str, state: Any = None) -> Any:
    """Ids of the prompt, without padding."""
    case, row = pair_of(task)
    return GOLDEN.tensor(case, "tokens")[row][GOLDEN.tensor(case, "token_mask")[row]].numpy()


def cameras(images: list[Any]) -> Any:
    """Pixels of the cameras that are there."""
    case, row = pair_of(images[0].task)
    there = GOLDEN.tensor(case, "image_mask")[row].tolist()
    return np.stack([GOLDEN.tensor(case, f"image_{slot}")[row].numpy() for slot, here in enumerate(there) if here])


def noise(dims: tuple[int, ...], key: DrawKey) -> Any:
    case, row = PAIRS[key.seed]
    found = GOLDEN.tensor(case, "noise")[row]
    assert key.site == "flow/x" and tuple(found.shape) == dims
    return found
