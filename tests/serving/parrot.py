"""A chat model without weights: a real engine over a fake rank that runs a script per request.

Token ids are bytes, so that most characters outside ASCII take several ids. By default it says the last message again, and a
tenth of a second of audio per word if audio is asked for.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np

from mstarc_runtime.abi.linked import CacheLink, ContextLink, Linked, RankLink, WalkLink
from mstarc_runtime.abi.messages import (
    ABI,
    Emitted,
    Fatal,
    Finish,
    Freed,
    Loading,
    Open,
    Ready,
    Start,
    Stats,
    WalkEnded,
    WalkFailed,
)
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.program import ConductorProgram, Entry, Input, Param
from mstarc_runtime.serving.app import make_app
from mstarc_runtime.serving.server import address, listen, serve
from mstarc_runtime.serving.service import Options, Service

RATE = 24000
PAGES = 4096
MODEL = "parrot"


class Utf8Stream:
    """Bytes to text; an unfinished character is held back."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        return self._decoder.decode(bytes([id]))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def layout(messages: list[Any]) -> list[int]:
    """The prompt's ids: the last text; for a recording as many ids as it has bytes."""
    seen.append(messages)
    last = messages[-1]
    if last.kind == "audio":
        if last.data == b"noise":
            raise BadRequest("audio data is none of wav, flac, mp3 or ogg", "messages")
        return list(last.data)
    return list(last.text.encode())


seen: list[list[Any]] = []  # the messages of every dry run


class Parrot(ConductorProgram):
    """request chat(messages: list(text | audio)) -> text, audio?"""

    MODEL = MODEL
    PARAMS = (
        Param("max_tokens", "int", default=256, low=1, high=1024),
        Param("temperature", "float", default=0.0, low=0.0, high=2.0),
        Param("top_p", "float", default=1.0, low=0.0, high=1.0),
        Param("ignore_eos", "bool", default=False),
    )
    ENTRIES = (
        Entry("chat", (Input("messages", "parts", members=("text", "audio")),), (("text", False), ("audio", True))),
        Entry("echo", (Input("words", "text"), Input("loud", "bool", optional=True)), (("text", False),)),
    )
    RESULTS = {"answer": 0}  # noqa: RUF012

    def chat(self, request: Any) -> Any:
        ids = yield request.extern("layout", request.inputs.messages)
        yield request.walk("answer", ids)

    def echo(self, request: Any) -> Any:
        yield request.walk("answer", list(request.inputs.words.encode()))

    def answer_need(self, request: Any, need: Any, ids: Any) -> None:
        need.write("main", need.rows(ids) + request.params.max_tokens)


class Turn:
    """One run of `answer` on the fake rank."""

    def __init__(self, rank: ParrotRank, opened: Open, start: Start) -> None:
        self._rank = rank
        self._start = start
        self.params = opened.params
        self.seed = opened.seed
        self.wants = opened.host["wants"]
        self.ids: list[int] = list(start.args[0])
        self.emitted = 0

    def _emit(self, modality: str, value: Any, **attributes: Any) -> None:
        self._rank.tell(Emitted([(self._start.request, "answer", modality, value, attributes)]))

    def say(self, text: str | bytes) -> None:
        """Emit text, one event per byte."""
        for token in text.encode() if isinstance(text, str) else text:
            self.emitted += 1
            self._emit("text", token)

    def sound(self, samples: Any, rate: int = RATE) -> None:
        self._emit("audio", np.asarray(samples, dtype=np.float32), rate=rate)

    def end(self, cause: str = "stop") -> None:
        counts = {"speaking": self.emitted, "context:main": len(self.ids) + self.emitted}
        self._rank.tell(WalkEnded(self._start.request, self._start.run, [], {"speaking": cause}, counts))

    def fail(self, text: str, status: int = 500) -> None:
        self._rank.tell(WalkFailed(self._start.request, self._start.run, text, status))


Script = Callable[[Turn], Awaitable[None]]


async def parrot(turn: Turn) -> None:
    """Say the prompt again, at most `max_tokens` ids of it; a word's audio comes after the word."""
    said = bytes(turn.ids[: turn.params["max_tokens"]])
    for at, byte in enumerate(said):
        turn.say(bytes([byte]))
        if "audio" in turn.wants and (byte == 32 or at == len(said) - 1):
            turn.sound(np.full(RATE // 10, 0.5))
        await asyncio.sleep(0)
    turn.end("stop" if len(said) == len(turn.ids) else "max")


class ParrotRank:
    """`engine.Cluster` of one rank. `script` may be changed at any time; a cancelled script ends at its next await."""

    def __init__(self, script: Script = parrot) -> None:
        self.script = script
        self.turns: dict[int, Turn] = {}
        self.opened: dict[int, Open] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.stopped = False
        self.cancelled: list[int] = []
        self.load: asyncio.Event | None = None  # if set, `Ready` waits for it
        self.fatal = ""  # if set, the rank says so instead of `Ready`
        self.lose: Callable[[int, str], None]

    async def start(self, on_message: Callable[[int, Any], None], on_lost: Callable[[int, str], None]) -> None:
        self._on_message, self.lose = on_message, on_lost
        self.tell(Loading(0, 1, 3, "feathers"))
        self._loading = asyncio.create_task(self._become_ready())

    async def _become_ready(self) -> None:
        if self.load is not None:
            await self.load.wait()
        if self.fatal:
            self.tell(Fatal(0, self.fatal))
        else:
            self.ready()

    def ready(self) -> None:
        self.tell(Ready(0, 1, ABI, {"lm": (PAGES, 16)}))
        self.tell(Stats(0, {"requests": 0.0, "pages_used": 7.0}))

    def tell(self, message: Any) -> None:
        self._on_message(0, message)

    def send(self, rank: int, message: Any) -> None:
        match message:
            case Open(request=request):
                self.opened[request] = message
            case Start(request=request):
                turn = self.turns[request] = Turn(self, self.opened[request], message)
                self.tasks[request] = asyncio.create_task(self._run(turn))
            case Finish(request=request):
                self.opened.pop(request, None)
                task = self.tasks.pop(request, None)
                if task is not None and not task.done():
                    self.cancelled.append(request)
                    task.cancel()
                turn = self.turns.pop(request, None)
                counts = {"context:main": len(turn.ids) + turn.emitted} if turn is not None else {}
                asyncio.get_running_loop().call_soon(self.tell, Freed(request, counts))

    async def _run(self, turn: Turn) -> None:
        await self.script(turn)

    async def stop(self) -> None:
        self.stopped = True
        self._loading.cancel()
        for task in self.tasks.values():
            task.cancel()


def linked(**changes: Any) -> Linked:
    modalities = {
        "text": {"decoder": "tests.serving.parrot.Utf8Stream", "finish": "answer.speaking", "usage": "main"},
        "audio": {"rate": RATE},
        "chat": {"request": "chat", "input": "messages", "audio_input": True},
    }
    for section, values in changes.items():
        modalities[section] = values
    return Linked(
        abi=ABI,
        model=MODEL,
        package="",
        digest="0123456789abcdef",
        ranks=[RankLink(rank=0)],
        config={},
        nodes=[],
        caches=[CacheLink(name="lm", layers=1, heads=1, kv_heads=1, head_dim=8)],
        contexts=[ContextLink(name="main", cache="lm", max=2048)],
        samplers=[],
        streams=[],
        walks=[WalkLink(name="answer", rank=0, contexts=["main"])],
        externs={"layout": "tests.serving.parrot.layout"},
        checkpoints=[],
        modalities={name: values for name, values in modalities.items() if values is not None},
    )


def engine(script: Script = parrot, **changes: Any) -> tuple[Engine, ParrotRank]:
    rank = ParrotRank(script)
    return Engine(linked(**changes), Parrot(), rank), rank


async def settled(engine: Engine) -> None:
    """Wait until the engine holds nothing any more."""
    async with asyncio.timeout(5):
        while any(engine.gauges().values()):
            await asyncio.sleep(0.001)


class Harness:
    """An application in process, without a socket."""

    def __init__(self, engine: Engine, rank: ParrotRank, options: Options | None = None) -> None:
        self.engine = engine
        self.rank = rank
        self.service = Service(engine, options)
        self.app = make_app(self.service)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://parrot")

    async def chat(self, content: Any = "hello", **fields: Any) -> httpx.Response:
        """One chat completion."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def metric(self, name: str) -> float:
        """The value of one line of `/metrics`, 0 if it is not there."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)


@asynccontextmanager
async def harness(script: Script = parrot, options: Options | None = None, **changes: Any) -> AsyncIterator[Harness]:
    """A started engine under its application; nothing may be left in it at the end."""
    made, rank = engine(script, **changes)
    await made.start()
    found = Harness(made, rank, options)
    try:
        yield found
        await settled(made)
        assert await found.metric("mstarc_http_open") == 0
    finally:
        await made.stop()


@asynccontextmanager
async def server(
    script: Script = parrot, options: Options | None = None, **changes: Any
) -> AsyncIterator[tuple[str, Engine, ParrotRank]]:
    """The real server on loopback: its address, engine and rank."""
    made, rank = engine(script, **changes)
    listener = listen("127.0.0.1", 0)
    stop, hurry = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(serve(made, listener, options or Options(grace_s=2.0), stop, hurry))
    try:
        async with asyncio.timeout(5):
            while not made.ready:
                await asyncio.sleep(0.001)
        yield address(listener), made, rank
        await settled(made)
    finally:
        stop.set()
        async with asyncio.timeout(15):
            assert await task == 0
