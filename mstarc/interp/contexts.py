"""The contexts of one request: how long each is, where its position counter stands, which ids it holds. Entries are the machine's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mstarc.interp.errors import ExecutionError
from mstarc.interp.machine import Machine
from mstarc.ir.declarations import Context


@dataclass(slots=True)
class ContextState:
    """One context. `on` is false where its `when` is false for this request: forks and writes are ignored, reads are absent."""

    on: bool
    store: Any
    most: int | None = None
    length: int = 0
    position: int = 0
    ids: list[int] = field(default_factory=list)


class Contexts:
    """All contexts of a request, by name."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._states: dict[str, ContextState] = {}
        self._caches: dict[str, str] = {}

    def declare(self, context: Context, on: bool, most: int | None) -> None:
        self._caches[context.name] = context.cache
        self._states[context.name] = ContextState(on, self._machine.empty(context.name, context.cache), most)

    def __getitem__(self, name: str) -> ContextState:
        return self._states[name]

    def fork(self, target: str, source: str) -> None:
        """target's entries, position and ids become those of source; neither sees later writes of the other.

        A context that is switched off ignores forks, in either role.
        """
        to, of = self._states[target], self._states[source]
        if to.on and of.on:
            to.store = self._machine.copy(of.store)
            to.length, to.position, to.ids = of.length, of.position, list(of.ids)

    def drop(self, name: str) -> None:
        state = self._states[name]
        state.store = self._machine.empty(name, self._caches[name])
        state.length, state.position, state.ids = 0, 0, []

    def wrote(self, name: str, entries: int, advance: int, ids: list[int]) -> None:
        """An op appended entries: the length grows by them, the counter by `advance`. Raises `ExecutionError` beyond the max."""
        state = self._states[name]
        state.length += entries
        state.position += advance
        state.ids.extend(ids)
        if state.most is not None and state.length > state.most:
            raise ExecutionError(f"context `{name}` holds {state.length} entries, more than its max {state.most}")

    def lengths(self) -> dict[str, tuple[int, int]]:
        """(length, position) by name."""
        return {name: (state.length, state.position) for name, state in self._states.items()}
