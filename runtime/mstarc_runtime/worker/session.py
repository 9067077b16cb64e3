"""What one request holds on one rank: params, contexts, sampler histories, cells, streams and running walks."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mstarc_runtime.abi.messages import Open, Start
from mstarc_runtime.errors import RequestFailed

if TYPE_CHECKING:
    from mstarc_runtime.worker.rank import Rank
    from mstarc_runtime.worker.streams import StreamIn, StreamOut
    from mstarc_runtime.worker.walks import WalkRun


class HostView:
    """What host expressions of a walk may ask beside params: `wants`, `given`, and the spec's `let`s by attribute."""

    def __init__(self, host: dict[str, Any]) -> None:
        self._wants = frozenset(host.get("wants", ()))
        self._given = frozenset(host.get("given", ()))
        for name, value in host.get("lets", {}).items():
            setattr(self, name, value)

    def wants(self, modality: str) -> bool:
        return modality in self._wants

    def given(self, modality: str) -> bool:
        return modality in self._given


class Session:
    """State of one request on this rank. Everything is released exactly once, by `close`."""

    def __init__(self, rank: Rank, opened: Open) -> None:
        self.rank = rank
        self.request = opened.request
        self.params = SimpleNamespace(**opened.params)
        self.host = HostView(opened.host)
        self.seed = opened.seed
        self.off = frozenset(opened.off)
        self.contexts: dict[str, Any] = {}
        self.samplers: dict[str, Any] = {}
        self.draws: dict[str, int] = {}
        self.cells: dict[str, dict[str, Any]] = {}  # node -> its cells
        self.outs: dict[tuple[str, int], StreamOut] = {}
        self.ins: dict[tuple[str, int], StreamIn] = {}
        self.runs: dict[int, WalkRun] = {}
        self.ended: set[int] = set()  # runs that ended well
        self.held: dict[int, list[Start]] = {}  # run -> starts that begin when it has ended well
        self.alive = True
        self.moved = 0  # how often a page of its contexts got another number
        self.broken: BaseException | None = None  # why no walk of the request can run here any more

    def context(self, name: str) -> Any | None:
        """The request's context of that name, made empty on first use; None if it is switched off."""
        if name in self.off:
            return None
        found = self.contexts.get(name)
        if found is None:
            found = self.contexts[name] = self.rank.new_context(name)
        return found

    def fork(self, target: str, source: str) -> None:
        """target becomes a copy-on-write copy of source, empty if that is; nothing if either is switched off."""
        if target in self.off or source in self.off:
            return
        if source not in self.contexts:  # perhaps no op of this rank uses its cache
            self.drop((target,))
            return
        copy = self.context(source).fork()  # type: ignore[union-attr]
        old = self.contexts.pop(target, None)
        if old is not None:
            old.drop()
        self.contexts[target] = copy

    def drop(self, names: Sequence[str]) -> None:
        """Make contexts empty and give their pages back."""
        for name in names:
            found = self.contexts.pop(name, None)
            if found is not None:
                found.drop()

    def next_draw(self, site: str) -> int:
        """j of the j-th execution of a drawing site."""
        j = self.draws.get(site, 0)
        self.draws[site] = j + 1
        return j

    def end_run(self, run: WalkRun) -> None:
        """Forget a run that has ended or failed."""
        run.alive = False
        self.runs.pop(run.run, None)

    def context_lengths(self) -> dict[str, int]:
        """`context:<name>` -> entries."""
        return {f"context:{name}": context.length for name, context in self.contexts.items()}

    def close(self) -> None:
        """Stop every walk and release contexts and streams."""
        self.alive = False
        for run in list(self.runs.values()):
            run.alive = False
            run.close()
        self.runs.clear()
        self.held.clear()
        self.drop(tuple(self.contexts))
        self.outs.clear()
        self.ins.clear()
        self.samplers.clear()
        self.cells.clear()

    def check_room(self, name: str, length: int, takes: int) -> None:
        """Refuse a write beyond the context's declared max: that request fails, no other is touched."""
        limit = self.rank.context_max.get(name, 0)
        if limit and length + takes > limit:
            raise RequestFailed(f"context `{name}` holds {limit} entries; {length} are used and {takes} more are due")
