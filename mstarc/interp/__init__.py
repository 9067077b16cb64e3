"""The reference interpreter: executes one request of a `Program`, single-threaded. It is the meaning of the language.

`interpret(program, machine, inputs, ...)` gives an `Outcome`. Everything that is not semantics (batches, pages, ranks, speculation)
is absent; whatever the runtime does must give the same events. `order` seeds which arm of a `together` goes first at each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mstarc.interp.admit import check_inputs, check_names
from mstarc.interp.calls import Calls
from mstarc.interp.errors import Deadlock, ExecutionError, InterpretError, RequestRefused
from mstarc.interp.hash_machine import HashMachine
from mstarc.interp.machine import DrawKey, Machine, OpRun, SamplerState
from mstarc.interp.reach import NOTHING, Reach
from mstarc.interp.run import Emitted, Run
from mstarc.interp.schedule import Scheduler
from mstarc.interp.scope import Frame, RequestScope
from mstarc.ir.core import Program, Request
from mstarc.ir.fold import ABSENT, FoldError
from mstarc.ir.types import Media, Parts, Scalar
from mstarc_runtime.abi.typed import kind_of

__all__ = [
    "ABSENT",
    "Deadlock",
    "DrawKey",
    "Emitted",
    "ExecutionError",
    "HashMachine",
    "InterpretError",
    "Machine",
    "OpRun",
    "Outcome",
    "RequestRefused",
    "SamplerState",
    "interpret",
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a request did.

    events: emissions in the order of this run. causes: `walk.label` of a dynamic loop -> how it ended last, `stop` or `max`.
    contexts: name -> (length, position) at the end. draws: sampler -> its ids in order. discarded: stream -> items nobody took.
    """

    events: tuple[Emitted, ...]
    causes: Mapping[str, str]
    contexts: Mapping[str, tuple[int, int]]
    draws: Mapping[str, tuple[int, ...]]
    discarded: Mapping[str, int]

    def emitted(self, modality: str) -> list[Any]:
        """The values of one modality, in order."""
        return [event.value for event in self.events if event.modality == modality]

    @property
    def finish_reason(self) -> str:
        """`length` if a dynamic loop ended at its `max`, else `stop`."""
        return "length" if "max" in self.causes.values() else "stop"


def interpret(
    program: Program,
    machine: Machine,
    inputs: Mapping[str, Any],
    *,
    request: str = "",
    params: Mapping[str, Any] | None = None,
    wants: Iterable[str] | None = None,
    seed: int = 0,
    order: int | None = None,
) -> Outcome:
    """Run one request to its end.

    request: its name; may be left out if there is one. wants: output modalities; default the ones that are not optional.
    Raises `RequestRefused` for what the client did wrong, `Deadlock`, or `ExecutionError`.
    """
    entry = _entry(program, request)
    params = {name: value for name, value in (params or {}).items() if value is not None}
    check_names(program, entry, inputs, params)
    wanted = frozenset(wants if wants is not None else (name for name, optional in entry.outputs if not optional))
    given = frozenset(_given(entry, inputs))
    try:
        scope = RequestScope(program, machine, params, given, wanted)
        found = check_inputs(entry, inputs, scope)
        run = Run(program, machine, scope, Calls(program, machine, scope, seed), Scheduler(order), Reach(program))
        frame = Frame(scope, machine, "", "request")
        for value in entry.inputs:
            frame.bind(value, found.get(value.name, ABSENT))
        run.scheduler.start("request", run.block(entry.body, frame, NOTHING))
        run.scheduler.run()
    except FoldError as error:
        raise ExecutionError(str(error)) from error
    discarded = {stream.name: stream.discarded for stream in run.streams if stream.discarded}
    draws = {name: tuple(ids) for name, ids in run.calls.histories.items()}
    return Outcome(tuple(run.events), dict(run.causes), run.calls.contexts.lengths(), draws, discarded)


def _entry(program: Program, name: str) -> Request:
    found = [r for r in program.requests if name in ("", r.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"`{r.name}`" for r in program.requests)
    raise RequestRefused(
        f"there is no request `{name}`; there are {names}" if name else f"name one of the requests {names}", "request"
    )


def _given(entry: Request, inputs: Mapping[str, Any]) -> Iterable[str]:
    """The modalities that the request brings."""
    for value in entry.inputs:
        if inputs.get(value.name) is None:
            continue
        match value.type:
            case Media(modality):
                yield modality
            case Scalar("text"):
                yield "text"
            case Parts() if isinstance(inputs[value.name], list | tuple):
                yield from filter(None, map(kind_of, inputs[value.name]))
