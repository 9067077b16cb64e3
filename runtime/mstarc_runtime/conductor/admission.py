"""What a request will need at most, found by a dry run of its program before it starts.

The program coroutine is driven once with walks that return unknowns: externs whose arguments are known run for real, here,
before admission (their results are kept for the real run), and each walk adds what it may write to each context.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mstarc_runtime.errors import BadRequest

if TYPE_CHECKING:
    from mstarc_runtime.conductor.requests import RequestRun


class UnknownValue:
    """A value that only the real run knows. It has no length and no fields; whatever is made of it is unknown too."""

    def __getattr__(self, name: str) -> UnknownValue:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, index: Any) -> UnknownValue:
        return self

    def __iter__(self) -> Any:
        return iter(())

    def _with(self, *others: Any) -> UnknownValue:
        return self

    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __neg__ = _with
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = _with


UNKNOWN = UnknownValue()


class Needs:
    """Implements `mstarc_runtime.program.Need`: peak entries per context, each bounded by the context's max."""

    def __init__(self, limits: Mapping[str, int], off: frozenset[str]) -> None:
        self._limits = limits
        self._off = off
        self._now: dict[str, int] = {}
        self.peak: dict[str, int] = {}
        self._open: set[str] = set()  # contexts with an unknown length in them

    def rows(self, value: Any) -> int | None:
        """Length of dim 0; 1 for a scalar; None for an unknown."""
        if isinstance(value, UnknownValue):
            return None
        return len(value) if hasattr(value, "__len__") else 1

    def write(self, context: str, entries: Any) -> None:
        """At most `entries` more in the context; None or an unknown: up to its max."""
        if context in self._off:
            return
        limit = self._limits.get(context, 0)
        known = entries is not None and not isinstance(entries, UnknownValue)
        if not known:
            self._open.add(context)  # from here on only the run itself can tell; its own check of room guards the max
        now = self._now.get(context, 0) + (max(0, int(entries)) if known else limit)
        self._now[context] = min(now, limit) if context in self._open and limit else now
        self.peak[context] = max(self.peak.get(context, 0), self._now[context])

    def drop(self, *contexts: str) -> None:
        for context in contexts:
            self._now[context] = 0
            self._open.discard(context)

    def fork(self, target: str, source: str) -> None:
        if target in self._off or source in self._off:
            return
        self._now[target] = self._now.get(source, 0)
        if source in self._open:
            self._open.add(target)
        self.peak[target] = max(self.peak.get(target, 0), self._now[target])


def dry_run(request: RequestRun, needs: Needs, program: Any) -> None:
    """Drive the request's program without its walks. Raises BadRequest from externs and `require`; fills `needs`."""
    request.dry = True
    try:
        _drive(getattr(program, request.entry.name)(request), request, needs, program)
    finally:
        request.dry = False


def _drive(steps: Any, request: RequestRun, needs: Needs, program: Any) -> None:
    from mstarc_runtime.conductor.requests import ExternStep, TogetherStep, WalkStep

    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration:
            return
        match step:
            case ExternStep():
                known = not any(isinstance(value, UnknownValue) for value in step.args)
                if known:
                    answer = request.call_extern(step)
                else:
                    unknown = _unknown(program, step.name)
                    answer = unknown[0] if len(unknown) == 1 else unknown
            case WalkStep(name=name, args=args):
                need = getattr(program, f"{name}_need")
                need(request, needs, *args)
                answer = _unknown(program, name)
            case TogetherStep(arms=arms):
                for arm in arms.values():
                    _drive(arm, request, needs, program)
                answer = None
            case _:
                raise TypeError(f"request program yielded {step!r}, which no verb gives")


def _unknown(program: Any, name: str) -> tuple[UnknownValue, ...]:
    return (UNKNOWN,) * int(program.RESULTS.get(name, 0))


def check_limits(needs: Needs, limits: Mapping[str, int], field: str) -> None:
    """Refuse a request that cannot fit a context."""
    for context, entries in needs.peak.items():
        limit = limits.get(context, 0)
        if limit and entries > limit:
            raise BadRequest(
                f"the request needs {entries} entries of context `{context}`, which holds {limit}: shorten the prompt or ask for less",
                field,
            )
