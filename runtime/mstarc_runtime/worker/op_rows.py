"""Arguments and results of an op's calls: batched as columns, and row by row."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from mstarc_runtime.abi.linked import OpLink
from mstarc_runtime.program import ABSENT

if TYPE_CHECKING:
    from mstarc_runtime.worker.session import Session
    from mstarc_runtime.worker.waits import CallWait


def rows_of(columns: tuple[Any, ...], count: int) -> list[tuple[Any, ...]]:
    """Batched columns as one tuple of arguments per row: arrays all, of numpy too."""
    return [tuple(None if column is None else column[i, ...] for column in columns) for i in range(count)]


def per_row(link: OpLink, results: Any, count: int) -> list[Any]:
    """Batched results as one outcome per row."""
    if not link.results:
        return [None] * count
    if link.results == 1:
        return [results[i] for i in range(count)]
    return [tuple(column[i] for column in results) for i in range(count)]


def picked(outcome: Any, only: tuple[int, ...]) -> Any:
    """The results that are used; nothing to pick where the call was skipped or its context is off."""
    if not isinstance(outcome, tuple):
        return outcome
    return outcome[only[0]] if len(only) == 1 else tuple(outcome[k] for k in only)


def same_call(session: Session, wait: CallWait) -> Hashable:
    """Equal for calls of one request with the same arguments: numbers of one value, arrays that are one object."""
    return id(session), *((type(a), a) if isinstance(a, bool | int | float | str) else id(a) for a in wait.args)


def shape_of(value: Any) -> tuple[int, ...] | None:
    """None for what is absent: it goes with nothing but its like."""
    return None if value is ABSENT or value is None else tuple(getattr(value, "shape", ()))
