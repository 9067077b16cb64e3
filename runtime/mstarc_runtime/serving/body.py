"""Reads a request body within its limits and parses it as strict JSON, or as msgpack. Whatever is wrong is a `BadRequest`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request

from mstarc_runtime.errors import BadRequest, RequestFailed
from mstarc_runtime.serving.faults import CLIENT_GONE
from mstarc_runtime.serving.http import BODY, ReadBody
from mstarc_runtime.serving.tensors import MSGPACK, MSGPACK_KINDS, parse_msgpack

MAX_BYTES = 25 * 2**20
READ_S = 60.0  # a body must be here by then
_OFF_LOOP = 2**18  # bytes; larger bodies are parsed in a thread


async def read_json(request: Request, limit: int = MAX_BYTES, read_s: float = READ_S) -> dict[str, Any]:
    """The body as a JSON object.

    Raises BadRequest: 400 for JSON that is broken, not UTF-8, not an object, or has a key twice, NaN, or half a surrogate pair;
    408, 413, 415. Raises RequestFailed (499) if the client leaves.
    """
    if not _is_json(kind_of(request)):
        raise BadRequest("the content type must be application/json", None, 415)
    return await _object(request, parse, "JSON", limit, read_s)


async def read_values(request: Request, limit: int = MAX_BYTES, read_s: float = READ_S) -> dict[str, Any]:
    """The body as a JSON object or a msgpack map, by its content type. Raises as `read_json` does."""
    if kind_of(request) in MSGPACK_KINDS:
        return await _object(request, parse_msgpack, "msgpack", limit, read_s)
    if not _is_json(kind_of(request)):
        raise BadRequest(f"the content type must be application/json or {MSGPACK}", None, 415)
    return await _object(request, parse, "JSON", limit, read_s)


def kind_of(request: Request) -> str:
    """The media type of the body."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def wants_msgpack(request: Request) -> bool:
    """Whether the answer is to be msgpack: as `Accept` says, else as the body came."""
    accepted = [kind.partition(";")[0].strip().lower() for kind in request.headers.get("accept", "").split(",")]
    if any(kind in MSGPACK_KINDS for kind in accepted):
        return True
    return kind_of(request) in MSGPACK_KINDS and not any(_is_json(kind) for kind in accepted)


def _is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")


async def _object(
    request: Request, read: Callable[[bytes | memoryview], Any], name: str, limit: int, read_s: float
) -> dict[str, Any]:
    try:
        async with asyncio.timeout(read_s):
            found = await _read(request, limit, read)
    except TimeoutError:
        raise BadRequest(f"the body did not arrive within {read_s:g} s", None, 408) from None
    except (ClientDisconnect, OSError):
        raise RequestFailed("the client left", CLIENT_GONE) from None
    if not isinstance(found, dict):
        raise BadRequest(f"the body must be a {name} {'map' if name == 'msgpack' else 'object'}")
    return found


async def _read(request: Request, limit: int, read: Callable[[bytes | memoryview], Any]) -> Any:
    """What `read` makes of the body, in a thread if that is large."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    whole: ReadBody | None = request.scope.get("extensions", {}).get(BODY)
    if whole is not None:
        return await whole(read)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
    body = b"".join(chunks)
    return read(body) if len(body) < _OFF_LOOP else await asyncio.to_thread(read, body)


def _too_large(limit: int) -> BadRequest:
    return BadRequest(f"the body is larger than {limit} bytes", None, 413)


def parse(body: bytes | memoryview) -> Any:
    """JSON of a body, strictly. Raises BadRequest."""
    try:
        text = str(body, "utf-8")
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
