"""Draws of coroutines on the device: the id stays there, and whether the logits could be drawn from is learnt when it arrives.

A coroutine that draws a first token would else wait for all the work that is queued on the device. If the logits turn out to be
unusable, the request fails then; nothing that it emits after the draw has left before, because the outbox keeps the order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mstarc_runtime.sampling.device import SamplerPlan, SamplerRows
from mstarc_runtime.sampling.philox import site_hash
from mstarc_runtime.sampling.philox_torch import uniforms
from mstarc_runtime.sampling.sampler import BadLogits

if TYPE_CHECKING:
    from mstarc_runtime.worker.rank import Rank
    from mstarc_runtime.worker.walks import WalkRun


class LateDraws:
    """The samplers of a rank, each with one row of the device's sampler, which every draw makes anew."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._links = {link.name: link for link in rank.linked.samplers}
        self._rows: dict[tuple[str, int], SamplerRows | None] = {}

    @torch.inference_mode()
    def sample(self, run: WalkRun, sampler: str, logits: Tensor, site: str) -> Tensor | None:
        """One id, i64 [], from logits [vocab]; None if the sampler does not fit the device's. Raises BadRequest."""
        rank, session, vocab = self._rank, run.session, len(logits)
        rows = self._row(sampler, vocab)
        if rows is None:
            return None
        settings, history = rank.ops.sampler_of(sampler, session)
        over = session.context(self._links[sampler].over) if self._links[sampler].over else None
        rows.put(0, settings, history.count, [history.ids] if over is None else [history.ids, over.entry_ids])
        name = f"{run.name}/{site}"
        seed = (session.seed + (1 << 63)) % (1 << 64) - (1 << 63)
        key, draw = (
            torch.full((1,), value, dtype=torch.int64, device=logits.device)
            for value in (seed, session.next_draw(name))
        )
        on = torch.ones(1, dtype=torch.bool, device=logits.device)
        ids, usable = rows.draw(logits[None], uniforms(key, site_hash(name), draw), on)
        history.append(ids[0])
        rank.outbox.send(session.request, [usable[0]], lambda values: self._check(run, values[0]))
        return ids[0]

    def _check(self, run: WalkRun, usable: Any) -> None:
        if not usable:
            self._rank.fail_session(run.session, BadLogits([0]))

    def _row(self, sampler: str, vocab: int) -> SamplerRows | None:
        if (sampler, vocab) not in self._rows:
            try:
                plan = SamplerPlan.of(self._links[sampler].settings)
                self._rows[sampler, vocab] = SamplerRows(plan, 1, vocab, self._rank.arrays.device)
            except ValueError:  # the host's sampler says what is wrong
                self._rows[sampler, vocab] = None
        return self._rows[sampler, vocab]
