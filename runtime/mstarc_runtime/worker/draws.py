"""Samplers of a rank: settings and histories per request, and draws for batches of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mstarc_runtime.abi.formula import evaluate
from mstarc_runtime.abi.linked import Linked, SamplerLink
from mstarc_runtime.arrays import Arrays
from mstarc_runtime.sampling.philox import DrawKey
from mstarc_runtime.sampling.sampler import BadLogits, History, Row, Settings, draw

if TYPE_CHECKING:
    from mstarc_runtime.worker.session import Session

Site = tuple["Session", str]  # the request and `walk/site`


class Draws:
    """Draws tokens; keys are (seed, walk/site, j), so that no batch or rank changes them."""

    def __init__(self, linked: Linked, arrays: Arrays) -> None:
        self._samplers = {sampler.name: sampler for sampler in linked.samplers}
        self._arrays = arrays

    def sample(
        self, sampler: str, logits: Any, sites: Sequence[Site], errors: list[tuple[int, BaseException]] | None
    ) -> Any:
        """One id per row [B]. Rows that cannot be drawn go to `errors` and get id 0; without `errors` they raise BadLogits."""
        rows = [self._row(self._samplers[sampler], session, site) for session, site in sites]
        try:
            return draw(logits, rows)
        except BadLogits as error:
            if errors is None:
                raise
            errors.extend((i, BadLogits([i])) for i in error.rows)
            kept = [i for i in range(len(rows)) if i not in error.rows]
        ids = self._arrays.zeros_like(logits[:, 0]).long()
        if kept:
            ids[kept] = draw(logits[kept], [rows[i] for i in kept])
        return ids

    def held(self, sampler: str, session: Session) -> tuple[Settings, History]:
        """The settings and the history of a sampler in a request. Raises BadRequest if a setting is out of range."""
        found: tuple[Settings, History] | None = session.samplers.get(sampler)
        if found is None:
            found = session.samplers[sampler] = (_settings(self._samplers[sampler], session), History())
        return found

    def _row(self, link: SamplerLink, session: Session, site: str) -> Row:
        settings, history = self.held(link.name, session)
        over = None
        if link.over and settings.repetition_penalty != 1.0:
            context = session.context(link.over)
            over = context.ids if context is not None else None
        return Row(settings, history, DrawKey(session.seed, site, session.next_draw(site)), over)


def _settings(link: SamplerLink, session: Session) -> Settings:
    """The sampler's settings in one request."""
    found: dict[str, Any] = {}
    for name, value in link.settings.items():
        if isinstance(value, str) and value.startswith("param:"):
            value = getattr(session.params, value.removeprefix("param:"))
        elif isinstance(value, dict):
            value = evaluate(value, session.params, session.host)
        found[name] = value
    return Settings(**found)
