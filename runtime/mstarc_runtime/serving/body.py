"""Reads a request body within its limits and parses it as strict JSON. Whatever is wrong is a `BadRequest`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from mstarc_runtime.errors import BadRequest, RequestFailed
from mstarc_runtime.serving.faults import CLIENT_GONE

MAX_BYTES = 25 * 2**20
READ_S = 60.0  # a body must be here by then
_OFF_LOOP = 2**18  # bytes; larger bodies are parsed in a thread


async def read_json(request: Request, limit: int = MAX_BYTES, read_s: float = READ_S) -> dict[str, Any]:
    """The body as a JSON object.

    Raises BadRequest: 400 for JSON that is broken, not UTF-8, not an object, or has a key twice, NaN, or half a surrogate pair;
    408, 413, 415. Raises RequestFailed (499) if the client leaves.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise BadRequest("the content type must be application/json", None, 415)
    try:
        async with asyncio.timeout(read_s):
            body = await _read(request, limit)
    except TimeoutError:
        raise BadRequest(f"the body did not arrive within {read_s:g} s", None, 408) from None
    except ClientDisconnect:
        raise RequestFailed("the client left", CLIENT_GONE) from None
    found = parse(body) if len(body) < _OFF_LOOP else await asyncio.to_thread(parse, body)
    if not isinstance(found, dict):
        raise BadRequest("the body must be a JSON object")
    return found


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> BadRequest:
    return BadRequest(f"the body is larger than {limit} bytes", None, 413)


def parse(body: bytes) -> Any:
    """JSON of a body, strictly. Raises BadRequest."""
    try:
        text = body.decode("utf-8")
        found = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
        if "\\u" in text:  # the only way to write half of a surrogate pair
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeError as error:
        raise BadRequest(
            f"the body is not valid UTF-8 text: {error.reason if hasattr(error, 'reason') else error}"
        ) from None
    except RecursionError:
        raise BadRequest("the JSON body is nested too deeply") from None
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    return found


def _no_constant(name: str) -> Any:
    raise BadRequest(f"the body is not valid JSON: {name} is not a number of JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise BadRequest(f"the key `{twice[:80]}` is there twice", twice[:80])
    return found
