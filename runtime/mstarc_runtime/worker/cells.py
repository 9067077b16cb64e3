"""Cells of a node: values that its ops keep from call to call of one request (`state NAME: TYPE = E`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mstarc_runtime.arrays import Arrays

_NUMPY = {"f32": "float32", "bf16": "float32", "f16": "float16"}
_NUMPY |= {"i64": "int64", "i32": "int32", "u8": "uint8", "bool": "bool"}


def new_cell(arrays: Arrays, dtype: str, dims: Sequence[int], init: Any) -> Any:
    """An array of that type, filled with its initial value."""
    cell = arrays.asarray(np.full(tuple(dims), init, dtype=_NUMPY[dtype]))
    return cell.bfloat16() if dtype == "bf16" and hasattr(cell, "bfloat16") else cell


class OpCells:
    """The cells of the rows of one call, by attribute: `cells.seen`, and `cells.seen = x` for what the next call sees.

    With the requests on dim 0 if `stacked`. A cell is replaced, never changed in place: the old value stays valid.
    """

    __slots__ = ("_arrays", "_rows", "_stacked")

    def __init__(self, arrays: Arrays, rows: Sequence[dict[str, Any]], stacked: bool) -> None:
        object.__setattr__(self, "_arrays", arrays)
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "_stacked", stacked)

    def __getattr__(self, name: str) -> Any:
        if name not in self._rows[0]:
            raise AttributeError(f"the node declares no state `{name}`")
        return self._arrays.stack([row[name] for row in self._rows]) if self._stacked else self._rows[0][name]

    def __setattr__(self, name: str, value: Any) -> None:
        for i, row in enumerate(self._rows):
            if name not in row:
                raise AttributeError(f"the node declares no state `{name}`")
            found = self._arrays.asarray(value)
            row[name] = found[i] if self._stacked else found
