"""pi0.5 with the reference weights and a tokenizer of single characters behind the real server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.package import load_conductor
from mstarc_runtime.serving.server import address, listen, serve
from mstarc_runtime.serving.service import Options
from tests.e2e.shipped import GOLDENS, linked


def letters(folder: Path) -> Path:
    """A folder with a tokenizer whose tokens are single characters."""
    known = {"<pad>": 0, "<bos>": 1} | {chr(code): code for code in (10, *range(32, 127))}
    tokenizer = Tokenizer(WordLevel(known, unk_token="<pad>"))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[str]:
    """The server's address."""
    program = linked("pi05", {"pi05": GOLDENS / "pi05", "tokenizer": letters(folder)})
    engine = Engine(program, load_conductor(program), LocalCluster(program))
    listener = listen("127.0.0.1", 0)
    stop = asyncio.Event()
    task = asyncio.create_task(serve(engine, listener, Options(grace_s=2.0), stop, asyncio.Event()))
    try:
        async with asyncio.timeout(30):
            while not engine.ready:
                await asyncio.sleep(0.01)
        yield address(listener)
    finally:
        stop.set()
        async with asyncio.timeout(15):
            assert await task == 0
