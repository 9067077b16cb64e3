"""What an op's method is handed before its arguments, as the op's attributes say: `random` a keyed generator.

Everything a call draws is undone if the call fails, so that the rows which are run again alone draw the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mstarc_runtime.arrays import Arrays
from mstarc_runtime.sampling.op_noise import OpNoise
from mstarc_runtime.sampling.philox import DrawKey

if TYPE_CHECKING:
    from mstarc_runtime.worker.ops import BoundOp
    from mstarc_runtime.worker.session import Session


class Handed:
    """Makes what the rows of one call of `bound` in walk `walk` are handed."""

    def __init__(self, arrays: Arrays, bound: BoundOp, walk: str, sessions: Sequence[Session]) -> None:
        self._arrays, self._link, self._sessions = arrays, bound.link, sessions
        self._noise_site = f"{walk}/{bound.name}"

    def rows(self, rows: Sequence[int]) -> tuple[Any, ...]:
        """For a call on these rows with their arguments on dim 0. A row that occurs twice (two contexts) draws the same twice."""
        return self._of(rows, stacked=True)

    def row(self, row: int) -> tuple[Any, ...]:
        """For a call on one row with its arguments as they are."""
        return self._of([row], stacked=False)

    def _of(self, rows: Sequence[int], stacked: bool) -> tuple[Any, ...]:
        if not self._link.random:
            return ()
        keys = {row: self._key(row) for row in dict.fromkeys(rows)}
        return (OpNoise(self._arrays, [keys[row] for row in rows], stacked),)

    def _key(self, row: int) -> DrawKey:
        session = self._sessions[row]
        return DrawKey(session.seed, self._noise_site, session.next_draw(self._noise_site))

    @contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """Inside, draws count only if nothing raises."""
        if not self._link.random:
            yield
            return
        draws = [session.draws.get(self._noise_site, 0) for session in self._sessions]
        try:
            yield
        except BaseException:
            for session, count in zip(self._sessions, draws, strict=True):
                session.draws[self._noise_site] = count
            raise
