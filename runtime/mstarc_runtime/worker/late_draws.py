"""Draws of coroutines on the device: the id stays there, and whether the logits could be drawn from is learnt when it arrives.

A coroutine that draws a first token would else wait for all the work that is queued on the device. If the logits turn out to be
unusable, the request fails then; nothing that it emits after the draw has left before, because the outbox keeps the order, and what
waits there is not sent any more.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mstarc_runtime.errors import describe
from mstarc_runtime.sampling.device import SamplerPlan, SamplerRows, uploaded
from mstarc_runtime.sampling.philox import DrawKey
from mstarc_runtime.sampling.philox import uniforms as host_uniforms
from mstarc_runtime.sampling.sampler import BadLogits, Settings

if TYPE_CHECKING:
    from mstarc_runtime.worker.device_runner import Runner
    from mstarc_runtime.worker.rank import Rank
    from mstarc_runtime.worker.walks import WalkRun

log = logging.getLogger("mstarc.worker")


class OneRow:
    """A sampler with one row, which every draw makes anew. The draw is captured: one upload of numbers, marks, and one replay."""

    def __init__(self, plan: SamplerPlan, vocab: int, device: torch.device, runner: Runner) -> None:
        self._rows = SamplerRows(plan, 1, vocab, device)
        # of ids below 0, the vocabulary, and ids beyond
        self._marks = torch.zeros(vocab + 2, dtype=torch.bool, device=device)
        if plan.penalty:
            self._rows.seen = self._marks[None, 1:-1]
        self._logits = torch.zeros(1, vocab, device=device)
        self._numbers = torch.zeros(7, dtype=torch.float64, device=device)
        self._on = torch.ones(1, dtype=torch.bool, device=device)
        self._work()  # compiles its kernels
        self._replay = runner.capture(self._work)

    def _work(self) -> tuple[Tensor, Tensor]:
        rows = self._rows
        settings = (rows.temperature, rows.top_k, rows.top_p, rows.penalty, rows.min_tokens, rows.count)
        for tensor, number in zip(settings, self._numbers[:-1], strict=True):
            tensor.copy_(number[None])
        return rows.draw(self._logits, self._numbers[-1:], self._on)

    def draw(
        self, logits: Tensor, settings: Settings, count: int, ids: Sequence[Tensor], number: float
    ) -> tuple[Tensor, Tensor]:
        """An id i64 [] and whether the logits [vocab] could be drawn from, bool [].

        count: draws so far; ids: what the penalty counts; number: random, in [0, 1).
        """
        s = settings
        numbers = (s.temperature, s.top_k, s.top_p, s.repetition_penalty, s.min_tokens, count, number)
        self._numbers.copy_(uploaded(np.array(numbers, np.float64), logits.device))
        if self._rows.plan.penalty:
            self._marks.zero_()
            for some in ids:
                if len(some):
                    self._marks.index_fill_(0, some.clamp(-1, self._rows.vocab) + 1, True)
        self._logits[0].copy_(logits)
        drawn, usable = self._replay()
        return drawn[0].clone(), usable[0].clone()


class LateDraws:
    """The samplers of a rank, each with one row of the device's sampler."""

    def __init__(self, rank: Rank, runner: Runner) -> None:
        self._rank, self._runner = rank, runner
        self._links = {link.name: link for link in rank.linked.samplers}
        self._rows: dict[tuple[str, int], OneRow | None] = {}

    @torch.inference_mode()
    def warm_up(self, sampler: str, vocab: int) -> None:
        """Before the first request: capture a sampler's draw from so many ids."""
        self._row(sampler, vocab)

    @torch.inference_mode()
    def sample(self, run: WalkRun, sampler: str, logits: Tensor, site: str) -> Tensor | None:
        """One id, i64 [], from logits [vocab]; None if the sampler does not fit the device's or has no capture. Raises BadRequest."""
        rank, session, vocab = self._rank, run.session, len(logits)
        row = self._row(sampler, vocab)
        if row is None:
            return None
        settings, history = rank.ops.sampler_of(sampler, session)
        over = session.context(self._links[sampler].over) if self._links[sampler].over else None
        ids = [history.ids] if over is None else [history.ids, over.entry_ids]
        name = f"{run.name}/{site}"
        [number] = host_uniforms([DrawKey(session.seed, name, session.next_draw(name))])
        drawn, usable = row.draw(logits, settings, history.count, ids, number)
        history.append(drawn)
        rank.outbox.send(session.request, [usable], lambda values: self._check(run, values[0]))
        return drawn

    def _check(self, run: WalkRun, usable: Any) -> None:
        if not usable:
            self._rank.outbox.retract(run.session.request)
            self._rank.fail_session(run.session, BadLogits([0]))

    def _row(self, sampler: str, vocab: int) -> OneRow | None:
        if (sampler, vocab) not in self._rows:
            try:
                plan = SamplerPlan.of(self._links[sampler].settings)
                self._rows[sampler, vocab] = OneRow(plan, vocab, self._rank.arrays.device, self._runner)
            except ValueError:  # the host's sampler says what is wrong
                self._rows[sampler, vocab] = None
            except Exception as error:
                log.warning("draws of `%s` are not captured: %s", sampler, describe(error))
                self._rows[sampler, vocab] = None
        return self._rows[sampler, vocab]
