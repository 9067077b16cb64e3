"""Errors that a user or an operator can meet, each with a kind that decides what the client sees."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mstarc_runtime.cache.pool import PagedPool


class RuntimeFault(Exception):
    """Base of every error the runtime reports on purpose. The message stands alone and names the thing."""


def describe(error: BaseException) -> str:
    """An error in one line for a person: a fault on purpose as it is, any other with its type and the place that raised it."""
    if isinstance(error, RuntimeFault):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def meant(name: str, known: Iterable[str]) -> str:
    """What to add to an error about an unknown name: the nearest known one, as a question; "" if none is near."""
    close = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean `{close[0]}`?" if close else ""


class LoadError(RuntimeFault):
    """A checkpoint is missing, has the wrong digest, or a tensor in it is missing, unexpected or misshaped."""


class BadRequest(RuntimeFault):
    """A request that cannot be served as written: HTTP 400 (or `status`). `field` names the offending part."""

    def __init__(self, message: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.field = field
        self.status = status


class Busy(RuntimeFault):
    """No room now: HTTP 429 with Retry-After (seconds)."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(RuntimeFault):
    """The engine cannot serve at all now (workers starting, restarting or shutting down): HTTP 503."""


class RequestFailed(RuntimeFault):
    """A request failed after it was admitted: an op raised, a worker died, a deadline passed. HTTP 500, 503 or 504."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


class OutOfPages(RequestFailed):
    """A KV pool has too few free pages, for now or, if even one request alone lacks them, for good (then its plan is wrong)."""

    def __init__(self, wanted: int, pool: PagedPool) -> None:
        super().__init__(
            f"the KV cache has no room: {wanted} pages wanted, {pool.free_pages} of {pool.total_pages} are free", 503
        )
        self.pool = pool
