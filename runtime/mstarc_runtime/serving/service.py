"""What every endpoint shares: the engine, the chat surface, metrics, and the requests that run for clients now."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mstarc_runtime.abi.messages import Loading
from mstarc_runtime.conductor.engine import DEADLINE_S, Engine
from mstarc_runtime.conductor.requests import RequestRun
from mstarc_runtime.errors import BadRequest, RequestFailed, Unavailable
from mstarc_runtime.serving.body import MAX_BYTES
from mstarc_runtime.serving.client import Client
from mstarc_runtime.serving.metrics import Metrics
from mstarc_runtime.serving.sse import WRITE_S
from mstarc_runtime.serving.surface import chat_surface, policy_surface, speech_surface, text_decoder
from mstarc_runtime.serving.text import TextReader, reader_of


@dataclass(frozen=True, slots=True)
class Options:
    """How to serve. `api_key` "" = everyone may call. `deadline_s` is what one request may take."""

    api_key: str = ""
    max_bytes: int = MAX_BYTES
    deadline_s: float = DEADLINE_S
    grace_s: float = 8.0  # what running requests get at shutdown
    write_s: float = WRITE_S  # a robot that reads nothing for so long is treated as gone


class Service:
    """See the module's docstring. One per engine, on the engine's event loop."""

    def __init__(self, engine: Engine, options: Options | None = None) -> None:
        self.engine = engine
        self.options = options or Options()
        self.surface = chat_surface(engine.linked, engine.program, engine.externs)
        self.speech = speech_surface(engine.linked, engine.program)
        self.policy = policy_surface(engine.linked, engine.program, engine.externs)
        self._decoder = text_decoder(engine.linked, engine.externs)
        self.metrics = Metrics(engine)
        self.loading = ""  # what the ranks load at the moment
        self.draining = False
        self._started = False
        self._runs: set[RequestRun] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def why_not_ready(self) -> str:
        """Why requests are not served now; "" if they are."""
        if self.draining:
            return "the server is shutting down"
        if self.engine.ready:
            self._started = True
            return ""
        if self.loading and not self._started:
            return f"loading: {self.loading}"
        return self.engine.why_not_ready()

    def note_loading(self, message: Loading) -> None:
        """Keep what is loading, for `/ready`."""
        self.loading = f"rank {message.rank}: {message.what} ({message.done} of {message.total})"

    def text_reader(self) -> TextReader | None:
        """What makes text of the ids of one request; None if the model names no decoder, or its checkpoint lacks what that needs."""
        found = reader_of(self._decoder)
        self._decoder = None if found is None else self._decoder  # said once
        return found

    def check_key(self, header: bytes | None) -> None:
        """Raises BadRequest (401) unless the `Authorization` header holds the key, if there is one.

        Robots' clients write `Api-Key` where others write `Bearer`.
        """
        key = self.options.api_key
        scheme, _, given = (header or b"").partition(b" ")
        known = scheme.lower() in (b"bearer", b"api-key")
        if key and not (hmac.compare_digest(given, key.encode()) and known):
            raise BadRequest("the API key is missing or wrong: send `Authorization: Bearer <key>`", None, 401)

    @asynccontextmanager
    async def run(
        self,
        client: Client,
        entry: str,
        inputs: Mapping[str, Any],
        params: Mapping[str, Any],
        wants: Iterable[str],
        seed: int | None,
    ) -> AsyncIterator[RequestRun]:
        """An admitted request, cancelled when the client leaves, also while it waits for room, and when the block ends."""
        why = self.why_not_ready()
        if why and (self.draining or not self._started):
            raise Unavailable(why)  # later the engine itself says why
        work = self.engine.submit(entry, inputs, params, wants, seed, self.options.deadline_s)
        run = await client.race(work, lambda late: late.cancel())
        self._runs.add(run)
        self._idle.clear()
        client.on_gone(run.cancel)
        try:
            yield run
        finally:
            run.cancel()  # nothing, if it has ended
            self._runs.discard(run)
            if not self._runs:
                self._idle.set()

    async def drain(self) -> None:
        """Take no more requests; wait until those that run have ended, at most `grace_s`."""
        self.draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), self.options.grace_s)

    def abort(self, why: str) -> None:
        """Stop what runs; its clients get the reason."""
        for run in list(self._runs):
            run.abort(RequestFailed(why, 503))
