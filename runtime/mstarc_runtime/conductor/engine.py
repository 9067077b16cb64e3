"""The engine: one linked program on its ranks. Admits requests, runs their programs, and fails them when a rank is lost.

engine = Engine(linked, program, cluster)
await engine.start(progress)
run = await engine.submit("chat", {"messages": [...]}, {"max_tokens": 64}, wants={"text"})
async for event in run.events(): ...
await engine.stop()
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Protocol

from mstarc_runtime.abi.linked import Linked, WalkLink
from mstarc_runtime.abi.messages import (
    CloseStream,
    Emitted,
    Fatal,
    Finish,
    Freed,
    Loading,
    Message,
    Open,
    Ready,
    SinkStream,
    Start,
    Stats,
    WalkEnded,
    WalkFailed,
)
from mstarc_runtime.checkpoints import Externs
from mstarc_runtime.conductor.admission import Needs, check_limits, dry_run
from mstarc_runtime.conductor.calls import Calls, WalkCall
from mstarc_runtime.conductor.params import check_inputs, check_params
from mstarc_runtime.conductor.ranks import Ranks
from mstarc_runtime.conductor.requests import Event, RequestRun, run_program
from mstarc_runtime.conductor.room import Room
from mstarc_runtime.conductor.threads import Threads
from mstarc_runtime.errors import BadRequest, Busy, RequestFailed, RuntimeFault, Unavailable
from mstarc_runtime.program import ConductorProgram, plain

log = logging.getLogger("mstarc.conductor")

DEADLINE_S = 600.0
NO_SCOPE = 0  # of walks outside any `together`: their streams have one end only


class Cluster(Protocol):
    """The ranks, however they run. Callbacks come on the event loop."""

    async def start(self, on_message: Callable[[int, Message], None], on_lost: Callable[[int, str], None]) -> None: ...

    def send(self, rank: int, message: Message) -> None: ...

    async def stop(self) -> None: ...


class Engine:
    """See the module's docstring. Not thread safe: everything runs on one event loop, externs in a small thread pool."""

    def __init__(self, linked: Linked, program: ConductorProgram, cluster: Cluster) -> None:
        self.linked = linked
        self.program = program
        self.cluster = cluster
        self.config = SimpleNamespace(**linked.config)
        self.externs = Externs(linked)
        self.entries = {entry.name: entry for entry in program.ENTRIES}
        self.worker_gauges: dict[int, Mapping[str, float]] = {}
        self.counters: dict[str, int] = {
            "admitted": 0,
            "stopped": 0,
            "failed": 0,
            "refused": 0,
            "busy": 0,
            "restarts": 0,
        }
        self.running: dict[int, RequestRun] = {}
        self._freeing: dict[int, tuple[RequestRun, set[int]]] = {}
        self._walks = Calls()
        self._numbers = itertools.count(1)
        self._scopes = itertools.count(1)
        self.ranks = Ranks(linked.ranks)
        self._stopping = False
        self._limits = {context.name: context.max for context in linked.contexts}
        self._walk_links = {walk.name: walk for walk in linked.walks}
        self._streams = {stream.name: stream for stream in linked.streams}
        self._room = Room(linked, self.ranks.up, lambda: self.ready)
        self._threads = Threads(2, "extern")
        self._progress: Callable[[Loading], None] | None = None

    # -------------------------------------------------------------------------------------------------------- life cycle

    async def start(self, progress: Callable[[Loading], None] | None = None, deadline_s: float = 300.0) -> None:
        """Start the ranks and wait until all are ready. Raises Unavailable that says which rank is not, and why."""
        self._progress = progress
        await self.cluster.start(self._on_message, self._on_lost)
        walks = {name for walk in self.linked.walks for name in walk.externs}
        cuts = {str(stream.args["cut"]) for stream in self.linked.streams if "cut" in stream.args}
        try:
            async with asyncio.timeout(deadline_s):
                await self.in_thread(lambda: self.externs.warm(self.linked.externs.keys() - walks - cuts))
                await self.ranks.decided()
        except TimeoutError:
            missing = [link.rank for link in self.ranks.missing()]
            what = f"ranks {missing} were" if missing else "the externs of the conductor were"
            raise Unavailable(f"{what} not ready after {deadline_s:g} s") from None
        if self.ranks.fatal:
            raise Unavailable(self.ranks.fatal)

    async def stop(self) -> None:
        """Cancel what runs, stop the ranks. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        self._room.close()
        tasks = [run.task for run in self.running.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
        await self.cluster.stop()
        for number, (_, ranks) in list(self._freeing.items()):
            ranks.clear()  # no process is left that could answer, or hold anything
            self._freed(number, None)
        self._threads.close()

    @property
    def ready(self) -> bool:
        """Whether every rank is up with its weights loaded."""
        return self.ranks.all_up and not self._stopping

    def why_not_ready(self) -> str:
        """What is missing for `ready`, in words; "" if nothing is."""
        return "the server is shutting down" if self._stopping else self.ranks.why_not()

    def gauges(self) -> dict[str, float]:
        """What the conductor itself holds; all return to zero when nothing runs."""
        return {
            "running": float(len(self.running)),
            "waiting": float(self._room.waiting),
            "freeing": float(len(self._freeing)),
            "pages_reserved": float(self._room.pages),
            "walks": float(len(self._walks)),
        }

    # ---------------------------------------------------------------------------------------------------------- requests

    async def submit(
        self,
        entry: str,
        inputs: Mapping[str, Any],
        params: Mapping[str, Any] | None = None,
        wants: Iterable[str] = (),
        seed: int | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> RequestRun:
        """Check and admit one request; it runs from here on. Raises BadRequest, Busy or Unavailable."""
        if not self.ready:
            raise Unavailable(self.why_not_ready())
        try:
            async with _within(deadline_s, "the externs of its inputs"):
                run = await self._check(entry, inputs, params or {}, frozenset(wants), seed)
            await self._room.enter(run)
            if not self.ready:  # a rank was lost, or the server stopped, while the request stood in line
                self._room.leave(run)
                raise Unavailable(self.why_not_ready())
        except BadRequest:
            self.counters["refused"] += 1
            raise
        except Busy:
            self.counters["busy"] += 1
            raise
        self.counters["admitted"] += 1
        self.running[run.number] = run
        run.task = _begun(self._run(run, deadline_s), f"request {run.number}")
        return run

    def checked(
        self,
        name: str,
        inputs: Mapping[str, Any],
        params: Mapping[str, Any],
        wants: frozenset[str],
        seed: int | None = None,
    ) -> RequestRun:
        """A request whose inputs, params and wants are as declared, not yet admitted. Needs no started rank. Raises BadRequest."""
        entry = self.entries.get(name)
        if entry is None:
            raise BadRequest(f"no request `{name}`; there are {', '.join(self.entries)}", "request", 404)
        outputs = {modality for modality, _ in entry.outputs}
        if not wants <= outputs:
            raise BadRequest(
                f"request `{name}` gives {', '.join(sorted(outputs))}, not {', '.join(sorted(wants - outputs))}",
                "modalities",
            )
        wanted = wants | {modality for modality, optional in entry.outputs if not optional}
        run = RequestRun(self, next(self._numbers), entry, wanted, secrets.randbits(63) if seed is None else seed)
        run.inputs = check_inputs(entry, inputs, self.config)
        run.present = _present(entry, run.inputs)
        check_params(self.program, params, run)
        return run

    async def _check(
        self, name: str, inputs: Mapping[str, Any], params: Mapping[str, Any], wants: frozenset[str], seed: int | None
    ) -> RequestRun:
        run = self.checked(name, inputs, params, wants, seed)
        off = frozenset(name for name in self.program.SWITCHED if not getattr(self.program, f"context_{name}")(run))
        run.off = off
        needs = Needs(self._limits, off)
        await self.in_thread(lambda: dry_run(run, needs, self.program))
        check_limits(needs, self._limits, run.entry.inputs[0].name if run.entry.inputs else "request")
        run.pages = self._room.pages_of(needs)
        return run

    async def _run(self, run: RequestRun, deadline_s: float) -> None:
        """Run a request's program to its end, whatever end that is, and free what it held."""
        error: RuntimeFault | None = None
        try:
            async with asyncio.timeout(deadline_s):
                await run_program(run, getattr(self.program, run.entry.name)(run), NO_SCOPE)
        except TimeoutError:
            waits = ", ".join(sorted(self._walks.under_way(run))) or "its program"
            error = RequestFailed(f"the deadline of {deadline_s:g} s passed while waiting for {waits}", 504)
        except asyncio.CancelledError:
            error = run.aborted or RequestFailed("cancelled", 499)
        except RuntimeFault as fault:
            error = fault
        except Exception as bug:
            log.exception("request %d", run.number)
            error = RequestFailed(f"internal error: {type(bug).__name__}: {bug}")
        self.counters["stopped" if error is None else "failed"] += 1
        self._free(run)
        run.end(error)

    def _free(self, run: RequestRun) -> None:
        """Tell every rank that the request is over; its pages count as used until each has answered."""
        self.running.pop(run.number, None)
        self._walks.forget(run)
        ranks = {rank for rank in run.ranks if rank in self.ranks.up}
        self._freeing[run.number] = (run, ranks)
        for rank in ranks:
            self.cluster.send(rank, Finish(run.number))
        self._freed(run.number, None)

    def _freed(self, number: int, rank: int | None) -> None:
        found = self._freeing.get(number)
        if found is None:
            return
        run, ranks = found
        if rank is not None:
            ranks.discard(rank)
        if not ranks:
            del self._freeing[number]
            run.freed.set()
            self._room.leave(run)

    # -------------------------------------------------------------------------------------------- for the request programs

    async def in_thread(self, work: Callable[[], Any]) -> Any:
        """Run host Python (an extern) off the event loop."""
        return await self._threads.run(work)

    def rank_of(self, walk: str) -> int:
        """Where a walk runs."""
        return self._walk_links[walk].rank

    def send_walk(
        self,
        run: RequestRun,
        name: str,
        args: tuple[Any, ...],
        scope: int,
        closes: tuple[str, ...],
        after: WalkCall | None,
    ) -> WalkCall:
        """Have one walk run on its rank: at once, or when `after`, which was sent to that rank, has ended. Raises RequestFailed."""
        rank = self.rank_of(name)
        if rank not in self.ranks.up:
            raise RequestFailed(f"rank {rank} is not running", 503)
        self._open(run, rank)
        if scope == NO_SCOPE:
            self._end_outside(run, self._walk_links[name])
        number = next(self._numbers)
        call = WalkCall(run, number, name, rank, after, asyncio.get_running_loop().create_future())
        self._walks.add(call)
        follows = after.number if after is not None else 0
        values = [plain(value) for value in args]
        self.cluster.send(rank, Start(run.number, number, name, values, scope, list(closes), follows))
        return call

    def _open(self, run: RequestRun, rank: int) -> None:
        """Make the request known on a rank, once."""
        if rank in run.ranks or rank not in self.ranks.up:
            return
        run.ranks.add(rank)
        self.cluster.send(rank, Open(run.number, vars(run.params), self._host(run), run.seed, sorted(run.off)))

    def begin_together(self, run: RequestRun, arms: Iterable[str]) -> int:
        """A new scope. Opens the request wherever a stream of the arms begins or ends, so that no item meets a stranger."""
        scope = next(self._scopes)
        tables = [self.program.ARMS.get(f"{run.entry.name}_{arm}", ((), ())) for arm in arms]
        sends = {name for sent, _ in tables for name in sent}
        takes = {name for _, taken in tables for name in taken}
        for name in sorted(sends | takes):
            self._open(run, self._streams[name].source)
            self._open(run, self._streams[name].sink)
        self._end_streams(run, scope, takes - sends, sends - takes)
        return scope

    def _end_outside(self, run: RequestRun, walk: WalkLink) -> None:
        """Outside any `together` a walk that takes finds its streams ended, and what it sends is discarded: told once in a request."""
        fresh = {*walk.takes, *walk.sends} - run.ended_outside
        run.ended_outside |= fresh
        for name in sorted(fresh):
            self._open(run, self._streams[name].sink)
        self._end_streams(run, NO_SCOPE, fresh, fresh)

    def _end_streams(self, run: RequestRun, scope: int, unsent: Iterable[str], untaken: Iterable[str]) -> None:
        """Streams with an end missing in a scope: what nobody sends on has ended, and what nobody takes from is discarded."""
        for name in sorted(unsent):
            self._tell(run, self._streams[name].source, CloseStream(run.number, name, scope))
        for name in sorted(untaken):
            self._tell(run, self._streams[name].source, SinkStream(run.number, name, scope))

    def _host(self, run: RequestRun) -> dict[str, Any]:
        lets = {name: getattr(self.program, f"let_{name}")(run) for name in self.program.LETS}
        return {"wants": sorted(run.wanted), "given": sorted(run.present), "lets": lets}

    def end_arm(self, run: RequestRun, scope: int, sends: Iterable[str], takes: Iterable[str]) -> None:
        """An arm of `together` has ended: its streams end, and what is still sent to it is discarded."""
        self._end_streams(run, scope, sends, takes)

    def _tell(self, run: RequestRun, rank: int, message: Message) -> None:
        if rank in self.ranks.up:
            self._open(run, rank)
            self.cluster.send(rank, message)

    # ---------------------------------------------------------------------------------------------------------- messages

    def _on_message(self, rank: int, message: Message) -> None:
        match message:
            case Emitted(events=events):
                now = time.monotonic()
                for number, walk, modality, value, attributes in events:
                    run = self._known(number)
                    if run is not None:
                        run.emitted[modality] = run.emitted.get(modality, 0) + 1
                        run.push(Event(modality, value, attributes, walk, now))
            case WalkEnded():
                self._walks.ended(message)
            case WalkFailed(run=number, text=text, status=status, field=field):
                refused = 400 <= status < 499
                self._walks.failed(number, BadRequest(text, field, status) if refused else RequestFailed(text, status))
            case Freed(request=number, counts=counts):
                freed = self._known(number)
                if freed is not None:
                    freed.count(counts)
                self._freed(number, rank)
            case Stats(values=values):
                self.worker_gauges[rank] = values
            case Loading():
                if self._progress is not None:
                    self._progress(message)
            case Ready():
                if self.ranks.add(rank, message):
                    self._room.advance()
            case Fatal(text=text):
                self.ranks.give_up(f"rank {rank}: {text}")
            case _:
                log.error("rank %d sent %s, which a conductor does not take", rank, type(message).__name__)

    def _known(self, number: int) -> RequestRun | None:
        """A request that runs or is being freed."""
        return self.running.get(number) or (self._freeing[number][0] if number in self._freeing else None)

    def _on_lost(self, rank: int, why: str) -> None:
        """A rank died: fail what runs there at once; the cluster restarts it, and `ready` is false until then."""
        if self._stopping:
            return
        log.error("rank %d was lost: %s", rank, why)
        self.ranks.lose(rank, why)
        self.worker_gauges.pop(rank, None)
        self.counters["restarts"] += 1
        for run in list(self.running.values()):
            if rank in run.ranks:
                run.ranks.discard(rank)
                run.abort(RequestFailed(f"worker {rank} was lost: {why}", 503))
        for number in list(self._freeing):
            self._freed(number, rank)


def _begun(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task that has come as far as it can without waiting, where Python knows such tasks."""
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, name=name, eager_start=True)
    return loop.create_task(work, name=name)


@asynccontextmanager
async def _within(seconds: float, what: str) -> AsyncIterator[None]:
    """Raises RequestFailed (504) that says what was waited for."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise RequestFailed(f"the deadline of {seconds:g} s passed while waiting for {what}", 504) from None


def _present(entry: Any, inputs: Any) -> frozenset[str]:
    """The modalities that the inputs hold: what `given(...)` answers."""
    found: set[str] = set()
    for item in entry.inputs:
        value = getattr(inputs, item.name)
        if value is None:
            continue
        if item.kind == "parts":
            found.update(str(part.kind) for part in value if hasattr(part, "kind"))
        else:
            found.add(item.kind)
    return frozenset(found)
