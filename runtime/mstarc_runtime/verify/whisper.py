"""Verification of Whisper: log-mel, encoder, decoder on the paged engine with its suppressed ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry
from mstarc_runtime.engines.component import Run
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine
from mstarc_runtime.models.whisper.components import Encoder, Scribe
from mstarc_runtime.models.whisper.mel import log_mel
from mstarc_runtime.sampling.sampler import Settings
from mstarc_runtime.verify.golden import Golden
from mstarc_runtime.verify.greedy import Ops, Request, decode
from mstarc_runtime.verify.report import Report
from mstarc_runtime.verify.setup import Item, Setup

NEAR = 1e-4
HOP = 160  # samples of a frame
LISTEN = OpSpec("scribe.listen", params=("packed",), results=(), attend="full", positions="same")
EVERY_ROW = OpSpec("scribe.rows", ("packed",), ("packed",), cross=True)


def plan(golden: Golden, setup: Setup) -> list[Item]:
    """The cases of a folder."""
    parts = _Parts(golden, setup)
    names = [case["name"] for case in golden.document["cases"]]
    found = [Item("mel", parts.mel), Item("encoder", parts.encode)]
    found += [Item(f"dec.{name}", partial(parts.transcribe, [name])) for name in names]
    found.append(Item("dec.together", partial(parts.transcribe, names)))
    if golden.has("short.generated"):
        found.append(Item("short", parts.short))
    return found


class _Parts:
    """The components, and what each case compares. All f32."""

    def __init__(self, golden: Golden, setup: Setup) -> None:
        self.golden = golden
        self.setup = setup
        self.encoder = Encoder.load(setup.checkpoint(golden.folder, "ears"), {}, setup.device)
        self.scribe = Scribe.load(setup.checkpoint(golden.folder, "scribe"), {}, setup.device)
        facts = self.scribe.config
        heads = facts.decoder_heads
        self.geometry = Geometry(facts.decoder_layers, heads, heads, facts.d_model // heads)
        ids: dict[str, Any] = golden.document["ids"]
        self.never, self.not_first = ids["suppress_tokens"], ids["begin_suppress_tokens"]
        self.short_samples = int(golden.document.get("short", {}).get("samples", 0))

    # ------------------------------------------------------------------------------------------------------------ encoder

    def mel(self, report: Report) -> None:
        """On the host. What lies beyond the stored head of the long window is one value."""
        bands, frames = self.encoder.config.n_mels, self.encoder.config.n_frames
        signal = self.golden.wanted("mel.waveform").numpy()
        self._mel(report, "mel.features", log_mel(signal, bands, frames))
        if self.golden.has("short.features"):
            self._mel(report, "short.features", log_mel(signal[: self.short_samples], bands, frames))
        if self.golden.has("mel30.features_head"):
            facts = self.golden.document["mel30"]
            whole, head = log_mel(signal, facts["shape"][0], facts["shape"][1]), facts["head_frames"]
            self._mel(report, "mel30.features_head", whole[:, :head])
            rest = np.full_like(whole[:, head:], facts["rest_value"])
            report.close("mel", "mel30 beyond its head", whole[:, head:], rest, NEAR, absolute=True, always_f32=True)
        if "silence_value" in self.golden.document:
            silent = log_mel(np.zeros(HOP * 4, np.float32), bands, frames)
            wanted = np.full_like(silent, self.golden.document["silence_value"])
            report.close("mel", "silence", silent, wanted, NEAR, absolute=True, always_f32=True)

    def _mel(self, report: Report, name: str, got: Any) -> None:
        report.close("mel", name, got, self.golden.wanted(name), NEAR, absolute=True, always_f32=True)

    def encode(self, report: Report) -> None:
        """Signals alone and stacked."""
        pairs = [("mel.features", "encoder.states"), ("short.features", "short.encoder_states")]
        pairs = [pair for pair in pairs if self.golden.has(pair[1])]
        if self.golden.has("encoder.hidden0"):
            got = self.encoder.net.embed(self.golden.given("mel.features"))
            report.close(
                "encoder", "encoder.hidden0", got, self.golden.wanted("encoder.hidden0"), NEAR, always_f32=True
            )
        together = self.encoder.encode(torch.stack([self.golden.given(features) for features, _ in pairs]))
        for (features, states), row in zip(pairs, together, strict=True):
            wanted = self.golden.wanted(states)
            report.close(
                "encoder", states, self.encoder.encode(self.golden.given(features)), wanted, NEAR, always_f32=True
            )
            report.close("encoder", f"{states} stacked", row, wanted, NEAR, always_f32=True)

    # ------------------------------------------------------------------------------------------------------------ decoder

    def transcribe(self, names: Sequence[str], report: Report) -> None:
        """Prompts over the reference's encoder states, in one batch: the prefill, then ids with and without suppression."""
        together = " together" if len(names) > 1 else ""
        prompts = [self.golden.given(f"dec.{name}.prompt") for name in names]
        engine = self.setup.engine(self.geometry, "float32")
        sounds = self._heard(engine, [self.golden.given("encoder.states")] * len(names))
        calls = [Call((p,), (Context(engine.pool),), len(p), cross=s) for p, s in zip(prompts, sounds, strict=True)]
        (rows,) = engine.call(self._rows, EVERY_ROW, calls)
        for name, got in zip(names, rows, strict=True):
            wanted = self.golden.wanted(f"dec.{name}.prefill_logits")
            report.close(f"dec.{name}", f"prefill_logits{together}", got, wanted, NEAR, always_f32=True)
        for role, settings in (
            ("generated", self._settings()),
            ("generated_without_suppression", Settings(temperature=0.0)),
        ):
            if self.golden.has(f"dec.{names[0]}.{role}"):
                wanted_ids = [self.golden.wanted(f"dec.{name}.{role}").tolist() for name in names]
                batch = [Request(*parts) for parts in zip(prompts, wanted_ids, sounds, strict=True)]
                paths = decode(engine, self._ops(), settings, batch)
                for name, path, ids in zip(names, paths, wanted_ids, strict=True):
                    report.equal(f"dec.{name}", f"{role}{together}", path.ids, ids)
                    stored = f"dec.{name}.{role}_logits"
                    if self.golden.has(stored):
                        wanted = self.golden.wanted(stored)
                        report.close(
                            f"dec.{name}", f"{role}_logits{together}", path.logits, wanted, NEAR, always_f32=True
                        )

    def short(self, report: Report) -> None:
        """From samples to ids, with the first case's prompt."""
        signal = self.golden.wanted("mel.waveform").numpy()[: self.short_samples]
        mel = torch.from_numpy(log_mel(signal, self.encoder.config.n_mels, self.encoder.config.n_frames))
        prompt = self.golden.given(f"dec.{self.golden.document['cases'][0]['name']}.prompt")
        engine = self.setup.engine(self.geometry, "float32")
        (sound,) = self._heard(engine, [self.encoder.encode(mel.to(self.setup.device))])
        wanted = self.golden.wanted("short.generated").tolist()
        (path,) = decode(engine, self._ops(), self._settings(), [Request(prompt, wanted, sound)])
        report.equal("short", "generated", path.ids, wanted)

    def _heard(self, engine: TransformerEngine, states: Sequence[Tensor]) -> list[Context]:
        """Contexts that hold keys and values of these states [A, d]."""
        sounds = [Context(engine.pool) for _ in states]
        calls = [Call((each,), (sound,), len(each)) for each, sound in zip(states, sounds, strict=True)]
        engine.call(self.scribe.listen, LISTEN, calls)
        return sounds

    def _settings(self) -> Settings:
        return Settings(temperature=0.0, suppress=tuple(self.never), suppress_first=tuple(self.not_first))

    def _ops(self) -> Ops:
        return Ops(self.scribe.read, self.scribe.step, cross=True)

    def _rows(self, run: Run, ids: Tensor) -> Tensor:
        return self.scribe.net.logits(self.scribe.net.hidden(run, ids))
