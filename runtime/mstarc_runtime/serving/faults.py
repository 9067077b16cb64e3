"""Errors -> HTTP answers in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mstarc_runtime.errors import BadRequest, Busy, RequestFailed, RuntimeFault, Unavailable

log = logging.getLogger("mstarc.serving")

RETRY_S = 5  # what to wait for workers that load or restart
CLIENT_GONE = 499  # nobody reads it; for logs and metrics

_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
    429: "overloaded",
    503: "unavailable",
    504: "deadline_exceeded",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One HTTP error. `outcome` is its name in the metrics."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    outcome: str


def fault(error: BaseException) -> Fault:
    """What the client gets for an error. Anything unexpected is a 500 that tells nothing of its insides."""
    match error:
        case BadRequest():
            return _fault(error.status, str(error), error.field, "refused")
        case Busy():
            wait = str(max(1, math.ceil(error.retry_after)))
            return _fault(429, str(error), None, "busy", {"retry-after": wait})
        case Unavailable():
            return _fault(503, str(error), None, "unavailable", {"retry-after": str(RETRY_S)})
        case RequestFailed():
            status = error.status if 400 <= error.status <= 599 else 500
            retry = {"retry-after": str(RETRY_S)} if status == 503 else {}
            return _fault(status, str(error), None, "cancelled" if status == CLIENT_GONE else "failed", retry)
        case _:
            return _fault(500, "internal error", None, "failed")


def log_unexpected(error: BaseException) -> None:
    """Leave a bug's traceback in the log; what is reported on purpose needs none."""
    if not isinstance(error, RuntimeFault):
        log.error("a request met an unexpected error", exc_info=error)


def shown_to(gone: bool, error: BaseException) -> Fault:
    """`fault(error)`, except that a client that is still there never sees 499: something else cancelled its request."""
    found = fault(error)
    if found.status == CLIENT_GONE and not gone:
        return fault(RequestFailed("the server cancelled the request", 503))
    return found


def _fault(
    status: int, message: str, param: str | None, outcome: str, headers: Mapping[str, str] | None = None
) -> Fault:
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    code = "model_not_found" if status == 404 and param == "model" else _CODES.get(status)
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return Fault(status, body, headers or {}, outcome)
