"""Starts that cannot work: each ends soon, in one sentence that says why."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mstarc_runtime.abi.linked import CheckpointLink
from mstarc_runtime.abi.messages import Fatal, Message
from mstarc_runtime.checkpoints import Externs, find_checkpoint
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.conductor.processes import ProcessCluster
from mstarc_runtime.errors import LoadError, RequestFailed, Unavailable
from mstarc_runtime.package import load_conductor
from tests.runtime import toy

ROOT = Path(__file__).resolve().parents[2]
PATH = {"PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}"}


class Dying:
    """A cluster whose rank does what it is told to when it is started."""

    def __init__(self, *script: Fatal | str) -> None:
        self._script = script

    async def start(self, on_message: Callable[[int, Message], None], on_lost: Callable[[int, str], None]) -> None:
        for step in self._script:
            if isinstance(step, Fatal):
                on_message(0, step)
            else:
                on_lost(0, step)

    def send(self, rank: int, message: Message) -> None:
        raise AssertionError("no rank is up")

    async def stop(self) -> None:
        return


async def start(tmp_path: Path, cluster: Any) -> str:
    """Why the toy does not start; an error if it takes 20 s to say so."""
    linked = toy.linked(tmp_path)
    engine = Engine(linked, load_conductor(linked), cluster)
    try:
        with pytest.raises(Unavailable) as refusal:
            async with asyncio.timeout(20):
                await engine.start()
    finally:
        await engine.stop()
    return str(refusal.value)


async def test_a_rank_that_dies_again_and_again(tmp_path: Path) -> None:
    assert "died 3 times while it was starting; at last signal 11" in await start(tmp_path, Dying(*["signal 11"] * 3))


async def test_last_words_are_not_forgotten_when_the_rank_is_gone_before_anybody_waits(tmp_path: Path) -> None:
    assert await start(tmp_path, Dying(Fatal(0, "no torch"), "status 87")) == "rank 0: no torch"


@pytest.mark.parametrize(
    ("line", "why"),
    [("def (", "SyntaxError"), ("import not_there_at_all", "not_there_at_all"), ("1 / 0", "ZeroDivisionError")],
)
async def test_a_worker_program_that_was_edited(line: str, why: str, tmp_path: Path) -> None:
    linked = toy.linked(tmp_path)
    path = tmp_path / "worker.py"
    path.write_text(f"{path.read_text()}\n{line}\n")
    engine = Engine(linked, load_conductor(linked), ProcessCluster(linked, env=PATH))
    try:
        with pytest.raises(Unavailable, match=rf"rank 0: .*worker\.py cannot be run: .*{why}"):
            async with asyncio.timeout(30):
                await engine.start()
    finally:
        await engine.stop()


@pytest.mark.parametrize("line", ["def (", "import not_there_at_all", "1 / 0"])
def test_a_conductor_program_that_was_edited(line: str, tmp_path: Path) -> None:
    linked = toy.linked(tmp_path)
    path = tmp_path / "conductor.py"
    path.write_text(f"{path.read_text()}\n{line}\n")
    with pytest.raises(LoadError, match=r"conductor\.py cannot be run: "):
        load_conductor(linked)


def test_a_package_of_another_version(tmp_path: Path) -> None:
    linked = msgspec.structs.replace(toy.linked(tmp_path), abi=99)
    with pytest.raises(LoadError, match="compiled for ABI 99"):
        load_conductor(linked)


class Host:
    """A host class whose tokenizer is broken."""

    @classmethod
    def load(cls, checkpoints: Any, config: Any) -> Host:
        return cls()

    def warm(self, methods: set[str]) -> None:
        raise KeyError("merges")

    def cut(self) -> None: ...


class Unloadable:
    @classmethod
    def load(cls, checkpoints: Any, config: Any) -> Unloadable:
        raise OSError("the disk is gone")

    def cut(self) -> None: ...


@pytest.mark.parametrize(
    ("method", "why"),
    [("Host.kut", "has no `kut`"), ("Host.cut", "KeyError: 'merges'"), ("Unloadable.cut", "the disk is gone")],
)
def test_externs_that_cannot_be_used(method: str, why: str, tmp_path: Path) -> None:
    linked = msgspec.structs.replace(toy.linked(tmp_path), externs={"cut": f"{__name__}.{method}"})
    with pytest.raises(LoadError, match=why):
        Externs(linked).warm(["cut"])


@pytest.mark.parametrize("where", ["/sys", "file"])
def test_weights_are_found_though_the_cache_cannot_be_written(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"weights")
    monkeypatch.setenv("XDG_CACHE_HOME", where if where == "/sys" else str(tmp_path / "file"))
    digest = hashlib.sha256(b"weights").hexdigest()
    link = CheckpointLink(name="w", path=str(tmp_path), file="file", sha256=digest)
    assert find_checkpoint(link).digest == digest
    with pytest.raises(LoadError, match="has sha256"):
        find_checkpoint(msgspec.structs.replace(link, sha256="0" * 64))


def test_a_package_that_the_import_system_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hiding:
        def find_spec(self, name: str, *rest: Any) -> None:
            if name == "hidden_weights":
                raise ModuleNotFoundError(name, name=name)

    monkeypatch.setattr(sys, "meta_path", [Hiding(), *sys.meta_path])
    with pytest.raises(LoadError, match="package `hidden_weights` is not installed"):
        find_checkpoint(CheckpointLink(name="w", package="hidden_weights", file="x"))


async def test_inputs_that_are_never_read_meet_the_deadline(tmp_path: Path) -> None:
    linked = toy.linked(tmp_path)
    engine = Engine(linked, load_conductor(linked), LocalCluster(linked))
    await engine.start()

    async def never(*args: Any) -> Any:
        await asyncio.Event().wait()

    engine._check = never  # type: ignore[method-assign]
    try:
        with pytest.raises(RequestFailed, match=r"deadline of 0\.05 s passed while waiting for the externs"):
            async with asyncio.timeout(10):
                await engine.submit("sums", {"start": 1}, deadline_s=0.05)
    finally:
        await engine.stop()
