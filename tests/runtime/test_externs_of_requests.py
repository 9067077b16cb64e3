"""Externs of a request: what its dry run has found is not looked for again, and costs no switch of threads."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from mstarc_runtime.conductor.admission import Needs, dry_run
from mstarc_runtime.conductor.requests import RequestRun, run_program
from mstarc_runtime.program import Entry


class Host:
    """What a request asks of an engine; notes what goes to a thread."""

    config: Any = None

    def __init__(self) -> None:
        self.called: list[Any] = []
        self.threads = 0
        self.externs = {"twice": self._twice}

    def _twice(self, x: list[int]) -> list[int]:
        self.called.append(x)
        return x + x

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        self.threads += 1
        return work()


def program(found: list[Any]) -> Any:
    def main(request: RequestRun) -> Any:
        once = yield request.extern("twice", request.inputs.x)
        again = yield request.extern("twice", once)
        found[:] = [once, again]
        return ()

    return SimpleNamespace(main=main, RESULTS={"twice": 1})


async def test_externs_of_the_dry_run() -> None:
    for dry, threads in ((True, 0), (False, 2)):
        host, found = Host(), list[Any]()
        request = RequestRun(host, 1, Entry("main", (), ()), frozenset(), 0)  # type: ignore[arg-type]
        request.inputs = SimpleNamespace(x=[1])
        if dry:
            dry_run(request, Needs({}, frozenset()), program(found))
        await run_program(request, program(found).main(request), 0)
        assert found == [[1, 1], [1, 1, 1, 1]]
        assert host.called == [[1], [1, 1]]
        assert host.threads == threads
