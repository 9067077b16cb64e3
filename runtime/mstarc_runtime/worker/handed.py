"""What an op's method is handed before its arguments: the node's cells, the generator of `random`, the sampler of `samples`.

Everything that a call draws and writes into cells is undone if it fails, so that the rows which are run again alone see the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mstarc_runtime.abi.formula import evaluate
from mstarc_runtime.abi.linked import NodeLink, OpLink
from mstarc_runtime.arrays import Arrays
from mstarc_runtime.sampling.op_noise import OpNoise
from mstarc_runtime.sampling.philox import DrawKey
from mstarc_runtime.worker.cells import OpCells, new_cell

if TYPE_CHECKING:
    from mstarc_runtime.worker.bound_ops import BoundOp
    from mstarc_runtime.worker.draws import Draws
    from mstarc_runtime.worker.session import Session


def handed_names(node: NodeLink, link: OpLink) -> tuple[str, ...]:
    """What a method is handed, in order, as the reference of the language calls it."""
    handed = (("cells", bool(node.states)), ("noise", link.random), ("pick", bool(link.samples)))
    return tuple(name for name, declared in handed if declared)


def handed_count(node: NodeLink, link: OpLink) -> int:
    """How many arguments a method is handed."""
    return len(handed_names(node, link))


class OpPicker:
    """The sampler that an op with `samples` is handed: called with logits [vocab] it gives an id, with [B, vocab] ids [B]."""

    def __init__(self, draws: Draws, sampler: str, sites: Sequence[tuple[Session, str]], stacked: bool) -> None:
        self._draws, self._sampler, self._sites, self._stacked = draws, sampler, sites, stacked

    def __call__(self, logits: Any) -> Any:
        """Draw once per row; the ids join the sampler's history."""
        drawn = self._draws.sample(self._sampler, logits if self._stacked else logits[None], self._sites, None)
        return drawn if self._stacked else drawn[0]


class Handed:
    """Makes what the rows of one call of `bound` in walk `walk` are handed."""

    def __init__(
        self, arrays: Arrays, draws: Draws | None, bound: BoundOp, walk: str, sessions: Sequence[Session]
    ) -> None:
        self._arrays, self._draws, self._node, self._link = arrays, draws, bound.node, bound.link
        self._sessions = sessions
        self._count = handed_count(bound.node, bound.link)
        self._noise = f"{walk}/{bound.name}"
        self._picks = f"{walk}/{bound.link.samples}"

    def rows(self, rows: Sequence[int]) -> tuple[Any, ...]:
        """For a call on these rows with their arguments on dim 0. A row that occurs twice (two contexts) has the same noise twice."""
        return self._of(rows, stacked=True)

    def row(self, row: int) -> tuple[Any, ...]:
        """For a call on one row with its arguments as they are."""
        return self._of([row], stacked=False)

    def keys(self, rows: Sequence[int]) -> list[DrawKey]:
        """The keys of the generator that rows are handed, one draw each; none if the op does not draw."""
        return [self._key(self._sessions[row]) for row in rows] if self._link.random else []

    def _of(self, rows: Sequence[int], stacked: bool) -> tuple[Any, ...]:
        if not self._count:
            return ()
        found: list[Any] = []
        if self._node.states:
            found.append(OpCells(self._arrays, [self._cells(self._sessions[row]) for row in rows], stacked))
        if self._link.random:
            keys = {row: self._key(self._sessions[row]) for row in dict.fromkeys(rows)}
            found.append(OpNoise(self._arrays, [keys[row] for row in rows], stacked))
        if self._link.samples:
            assert self._draws is not None, "a rank with such an op has draws"
            sites = [(self._sessions[row], self._picks) for row in rows]
            found.append(OpPicker(self._draws, self._link.samples, sites, stacked))
        return tuple(found)

    def _key(self, session: Session) -> DrawKey:
        return DrawKey(session.seed, self._noise, session.next_draw(self._noise))

    def _cells(self, session: Session) -> dict[str, Any]:
        """The node's cells in one request, made on first use."""
        cells = session.cells.get(self._node.name)
        if cells is None:
            cells = session.cells[self._node.name] = {
                state.name: new_cell(
                    self._arrays, state.dtype, state.dims, evaluate(state.init, session.params, session.host)
                )
                for state in self._node.states
            }
        return cells

    # ------------------------------------------------------------------------------------------------------------ failure

    @contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """Inside, draws and new values of cells count only if nothing raises."""
        if not self._count:
            yield
            return
        before = [self._snapshot(session) for session in self._sessions]
        try:
            yield
        except BaseException:
            for session, snapshot in zip(self._sessions, before, strict=True):
                self._restore(session, *snapshot)
            raise

    def _snapshot(self, session: Session) -> tuple[dict[str, int], int, dict[str, Any] | None]:
        draws = {site: session.draws.get(site, 0) for site in (self._noise, self._picks)}
        held = session.samplers.get(self._link.samples)
        cells = session.cells.get(self._node.name)
        return draws, held[1].count if held else 0, None if cells is None else dict(cells)

    def _restore(self, session: Session, draws: dict[str, int], drawn: int, cells: dict[str, Any] | None) -> None:
        session.draws.update(draws)
        if self._link.samples in session.samplers:
            session.samplers[self._link.samples][1].count = drawn
        if cells is None:
            session.cells.pop(self._node.name, None)
        else:
            session.cells[self._node.name] = cells
