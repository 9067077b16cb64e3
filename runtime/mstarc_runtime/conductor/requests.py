"""One request: the `RequestRun` that a generated request program speaks to, and the tasks that run its arms."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mstarc_runtime.errors import BadRequest, RequestFailed, RuntimeFault
from mstarc_runtime.program import Entry

if TYPE_CHECKING:
    from mstarc_runtime.conductor.calls import WalkCall
    from mstarc_runtime.conductor.engine import Engine


@dataclass(frozen=True, slots=True)
class ExternStep:
    """A request program calls a host function."""

    name: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class WalkStep:
    """A request program runs a walk. closes: the streams that end with it."""

    name: str
    args: tuple[Any, ...]
    closes: tuple[str, ...]
    ahead: bool = False  # go on before it has ended


@dataclass(frozen=True, slots=True)
class TogetherStep:
    """A request program runs arms at the same time: a coroutine by label."""

    arms: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """Something the client may see, in order: a value of a modality with attributes such as `rate`."""

    modality: str
    value: Any
    attributes: Mapping[str, Any]
    walk: str
    time: float  # seconds on the monotonic clock, when the conductor received it


@dataclass(slots=True)
class Outcome:
    """How a request ended.

    causes: `<walk>.<loop>` -> `stop` or `max`; counts: the same -> bodies that were run, and `context:<name>` -> its greatest length.
    """

    causes: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


AHEAD = 4  # starts of one coroutine that may wait on a rank: their arguments lie in its memory
_END = object()


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether two argument lists are the same: one object, or equal scalars (externs are pure functions of these)."""
    plain = (bool, int, float, str, type(None))
    return len(a) == len(b) and all(
        x is y or (isinstance(x, plain) and isinstance(y, plain) and x == y) for x, y in zip(a, b, strict=True)
    )


class RequestRun:
    """Implements `mstarc_runtime.program.RequestRun`; also the caller's handle: iterate `events()`, `cancel()`."""

    def __init__(self, engine: Engine, number: int, entry: Entry, wants: frozenset[str], seed: int) -> None:
        self.engine = engine
        self.number = number
        self.entry = entry
        self.wanted = wants
        self.seed = seed
        self.config = engine.config
        self.params: Any = SimpleNamespace()
        self.inputs: Any = SimpleNamespace()
        self.present: frozenset[str] = frozenset()
        self.dry = False
        self.off: frozenset[str] = frozenset()
        self.pages: dict[tuple[int, str], int] = {}
        self.outcome = Outcome()
        self.error: RuntimeFault | None = None
        self.aborted: RuntimeFault | None = None
        self.ended = False
        self.freed = asyncio.Event()  # no rank holds anything of it any more; `outcome.counts` is complete
        self.emitted: dict[str, int] = {}  # modality -> events that the ranks emitted, seen by the client or not
        self.ranks: set[int] = set()  # where the request is open
        self.ended_outside: set[str] = set()  # streams that have neither end outside a `together`, once that was told
        self._known: list[tuple[ExternStep, Any]] = []
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    # ---------------------------------------------------------------------------------------------- verbs of the program

    def wants(self, modality: str) -> bool:
        return modality in self.wanted

    def given(self, modality: str) -> bool:
        return modality in self.present

    def extern(self, name: str, *args: Any) -> ExternStep:
        return ExternStep(name, args)

    def walk(self, name: str, *args: Any, closes: tuple[str, ...] = ()) -> WalkStep:
        return WalkStep(name, args, closes)

    def start(self, name: str, *args: Any, closes: tuple[str, ...] = ()) -> WalkStep:
        return WalkStep(name, args, closes, ahead=True)

    def together(self, **arms: Any) -> TogetherStep:
        return TogetherStep(arms)

    def require(self, condition: bool, text: str) -> None:
        if not condition:
            raise BadRequest(f"the request must satisfy {text}", text)

    # ------------------------------------------------------------------------------------------------------------ running

    def known(self, step: ExternStep) -> tuple[Any] | None:
        """What the dry run found for an extern; None if it could not run it."""
        for each, result in self._known:
            if each.name == step.name and _same(each.args, step.args):
                return (result,)
        return None

    def call_extern(self, step: ExternStep) -> Any:
        """Run an extern, or give what the dry run found. Any thread."""
        found = self.known(step)
        if found:
            return found[0]
        try:
            result = self.engine.externs[step.name](*step.args)
        except RuntimeFault:
            raise
        except Exception as error:
            raise RequestFailed(f"extern `{step.name}` failed: {type(error).__name__}: {error}") from error
        if self.dry:
            self._known.append((step, result))
        return result

    # ---------------------------------------------------------------------------------------------------- for the caller

    def push(self, event: Event) -> None:
        """Queue an event for the client; after the end nothing becomes visible."""
        if not self.ended:
            self._events.put_nowait(event)

    def end(self, error: RuntimeFault | None) -> None:
        """The request is over, well or not. The first call counts."""
        if not self.ended:
            self.ended = True
            self.error = error
            self._events.put_nowait(_END)

    async def events(self) -> AsyncIterator[Event]:
        """Events in order until the end; raises the request's error after the last of them."""
        while (event := await self._events.get()) is not _END:
            yield event
        self._events.put_nowait(_END)
        if self.error is not None:
            raise self.error

    def count(self, counts: Mapping[str, int]) -> None:
        """Note counts of a rank; of a context the longest length counts."""
        for name, value in counts.items():
            self.outcome.counts[name] = max(value, self.outcome.counts.get(name, 0))

    def cancel(self) -> None:
        """Stop the request: between effects, everywhere, freeing all it holds. Idempotent."""
        if self.task is not None:
            self.task.cancel()

    def abort(self, error: RuntimeFault) -> None:
        """Stop the request because it cannot go on; the client sees `error`."""
        self.aborted = self.aborted or error
        self.cancel()


class Line:
    """The walks of one program coroutine, which run one after the other. `last`: the newest that was sent; it may wait for others."""

    def __init__(self, request: RequestRun, scope: int, after: WalkCall | None) -> None:
        self._engine, self._request, self._scope = request.engine, request, scope
        self._sent: deque[WalkCall] = deque()
        self.last = after

    async def walk(self, step: WalkStep) -> tuple[Any, ...]:
        """Send a walk and wait for its results, unless it is to run ahead. Behind a walk of another rank it is sent when that has ended."""
        while len(self._sent) > AHEAD:
            await self._sent.popleft().results
        if self.last is not None and (self.last.over or self.last.rank != self._engine.rank_of(step.name)):
            await self.end()  # what failed meanwhile is found here: nothing would ever begin behind it
        self.last = self._engine.send_walk(self._request, step.name, step.args, self._scope, step.closes, self.last)
        if step.ahead:
            self._sent.append(self.last)
            return ()
        self._sent.clear()
        return await self.last.results

    async def end(self) -> None:
        """Wait for all that was sent. Raises what the first of them that failed raised."""
        if self.last is not None:
            await self.last.results
        self.last = None
        self._sent.clear()


async def run_program(request: RequestRun, steps: Any, scope: int, after: WalkCall | None = None) -> None:
    """Drive one program coroutine (the request's own, or an arm's) to its end. `after`: its first walk begins when this one has ended."""
    answer: Any = None
    line = Line(request, scope, after)
    while True:
        try:
            step = steps.send(answer)
        except StopIteration:
            if line.last is not after:
                await line.end()
            return
        match step:
            case ExternStep():
                answer = await _extern(request, step)
            case WalkStep():
                answer = await line.walk(step)
            case TogetherStep(arms=arms):
                await run_together(request, arms, line.last)
                answer = None
            case _:
                raise TypeError(f"request program yielded {step!r}, which no verb gives")


async def _extern(request: RequestRun, step: ExternStep) -> Any:
    """What an extern gives. What the dry run has found costs no switch to another thread and back."""
    found = request.known(step)
    return found[0] if found else await request.engine.in_thread(lambda: request.call_extern(step))


async def run_together(request: RequestRun, arms: Mapping[str, Any], after: WalkCall | None) -> None:
    """Run arms at once; their walks begin when `after` has ended. When an arm ends, its streams end: nothing more is sent, and what is
    sent to it is discarded.
    """
    engine = request.engine
    scope = engine.begin_together(request, arms)

    async def run_arm(label: str, steps: Any) -> None:
        await run_program(request, steps, scope, after)
        sends, takes = engine.program.ARMS.get(f"{request.entry.name}_{label}", ((), ()))
        engine.end_arm(request, scope, sends, takes)

    try:
        async with asyncio.TaskGroup() as group:
            for label, steps in arms.items():
                group.create_task(run_arm(label, steps))
    except BaseExceptionGroup as errors:
        raise _first_fault(errors) from errors


def _first_fault(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to show for a failed `together`: a fault on purpose before anything else."""
    leaves: list[BaseException] = []

    def visit(error: BaseException) -> None:
        if isinstance(error, BaseExceptionGroup):
            for inner in error.exceptions:
                visit(inner)
        else:
            leaves.append(error)

    visit(errors)
    return next((leaf for leaf in leaves if isinstance(leaf, RuntimeFault)), leaves[0])
