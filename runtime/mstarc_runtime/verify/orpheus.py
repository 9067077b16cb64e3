"""Verification of Orpheus: the language model's logits and ids on the paged engine, ids to codes, the codec, streamed windows."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry
from mstarc_runtime.engines.component import Run
from mstarc_runtime.engines.transformer import Call, OpSpec
from mstarc_runtime.models.llama import Llama
from mstarc_runtime.models.orpheus.snac import FRAME, WINDOW, Snac
from mstarc_runtime.sampling.sampler import Settings
from mstarc_runtime.verify.golden import Golden, UnusableFolder
from mstarc_runtime.verify.greedy import Ops, Path, Request, decode
from mstarc_runtime.verify.report import Report
from mstarc_runtime.verify.setup import Item, Setup

NEAR = 1e-4
EVERY_ROW = OpSpec("llm.rows", ("packed",), ("packed", "packed"))


def plan(golden: Golden, setup: Setup) -> list[Item]:
    """The cases of a folder: prompts alone and together, layouts, codec inputs, the stream."""
    speech = _Speech(golden, setup)
    prompts = sorted(map(int, golden.matching(r"lm\.(\d+)\.input_ids")))
    found = [Item(f"lm.{n}", partial(speech.prompts, [n])) for n in prompts]
    if len(prompts) > 1:
        found.append(Item("lm.together", partial(speech.prompts, prompts)))
    codec = _Codec(golden, setup)
    for case in golden.document.get("layout", {}).get("cases", ()):
        found.append(Item(f"layout.{case['name']}", partial(codec.layout, case)))
    for name in golden.matching(r"snac\.(\w+)\.codes0"):
        found.append(Item(f"snac.{name}", partial(codec.decode, f"snac.{name}")))
    if golden.has("stream.tokens"):
        found.append(Item("stream", codec.stream))
    return found


class _Speech:
    """The language model."""

    def __init__(self, golden: Golden, setup: Setup) -> None:
        self.golden = golden
        self.setup = setup
        self.model = Llama.load(setup.checkpoint(golden.folder, "llm"), setup.node, setup.device)
        facts = self.model.facts
        self.geometry = Geometry(
            facts.num_hidden_layers, facts.num_attention_heads, facts.num_key_value_heads, facts.head_dim
        )
        self.stops = {row["index"]: row["stop_case"] for row in golden.document.get("lm", {}).get("prompts", ())}

    def prompts(self, chosen: list[int], report: Report) -> None:
        """Prompts in one batch: every position of the prefill, then greedy ids under each repetition penalty."""
        together = " together" if len(chosen) > 1 else ""
        prompts = [self.golden.given(f"lm.{n}.input_ids") for n in chosen]
        engine = self.setup.engine(self.geometry)
        contexts = [Context(engine.pool) for _ in chosen]
        calls = [Call((ids,), (context,), len(ids)) for ids, context in zip(prompts, contexts, strict=True)]
        logits, hidden = engine.call(self._rows, EVERY_ROW, calls)
        for k, n in enumerate(chosen):
            for role, got in (("prefill_logits", logits[k]), ("last_hidden", hidden[k])):
                if self.golden.has(f"lm.{n}.{role}"):
                    report.close(f"lm.{n}", f"{role}{together}", got, self.golden.wanted(f"lm.{n}.{role}"), NEAR)
        for context in contexts:
            context.drop()
        for penalty in self.golden.matching(rf"lm\.{chosen[0]}\.generated_pen([\d.]+)"):
            settings = Settings(temperature=0.0, repetition_penalty=float(penalty))
            wanted = [self.golden.wanted(f"lm.{n}.generated_pen{penalty}").tolist() for n in chosen]
            batch = [Request(prompt, ids) for prompt, ids in zip(prompts, wanted, strict=True)]
            paths = decode(engine, Ops(self.model.read, self.model.step), settings, batch)
            for n, path, ids in zip(chosen, paths, wanted, strict=True):
                self._path(report, n, penalty, together, path, ids)

    def _path(self, report: Report, n: int, penalty: str, together: str, path: Path, wanted: list[int]) -> None:
        case, what = f"lm.{n}", f"penalty {penalty}{together}"
        report.ids(case, f"ids, {what}", path.ids, path.scores, wanted)
        role = f"lm.{n}.generated_logits_pen{penalty}"
        if self.golden.has(role):
            report.close(case, f"logits, {what}", path.logits, self.golden.wanted(role), NEAR)
            stop = self.stops.get(n)
            if stop and report.exact:  # the penalty of the stored logits is the one that the stop case is about
                cut = _until(path.ids, stop["stop_token_id"])
                report.equal(case, f"ids with an end{together}", cut, stop["generated_with_stop"])
                report.equal(case, f"ids before the end{together}", cut[:-1], stop["stream_tokens"])

    def _rows(self, run: Run, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and normed hidden states of every row."""
        hidden = self.model.hidden(run, ids)
        norm = self.model._norm
        normed = F.rms_norm(hidden.float(), norm.shape, norm.float(), self.model.facts.rms_norm_eps)
        return self.model.logits(hidden), normed


def _until(ids: list[int], end: int) -> list[int]:
    """Ids up to and with the first end."""
    return ids[: ids.index(end) + 1] if end in ids else ids


class _Codec:
    """Ids to codes, and SNAC."""

    def __init__(self, golden: Golden, setup: Setup) -> None:
        self.golden = golden
        layout: dict[str, Any] = golden.document.get("layout", {})
        self.first, self.end = layout.get("audio_base", 128266), layout.get("stop_token_id", 128258)
        folder = golden.folder / "snac"
        if not folder.is_dir():
            raise UnusableFolder(f"{folder} does not exist")
        self.snac = Snac.load(setup.checkpoint(folder, "snac"), {"first_id": self.first}, setup.device)
        self.size = self.snac.facts.codebook_size

    def layout(self, case: dict[str, Any], report: Report) -> None:
        """Levels of a window. Of the public client's behaviour only what is meant here too: text ids are skipped, the end ends.

        Where ids are out of place it drops some and rejects windows; here each window that holds one is silent.
        """
        name = f"layout.{case['name']}"
        tokens = _until(case["tokens"], self.end)
        heard = torch.tensor([token for token in tokens if token >= self.first])
        codes = heard - self.first - self.size * (torch.arange(len(heard)) % FRAME)
        aligned = bool(((codes >= 0) & (codes < self.size)).all())
        windows = heard.unfold(0, FRAME * WINDOW, FRAME) if len(heard) >= FRAME * WINDOW else heard.new_zeros(0, 28)
        levels, good = self.snac.codes(windows.to(self.snac._offsets.device))
        if "level0" in case:
            got = [level[0].tolist() for level in levels]
            report.equal(name, "levels", got, [case["level0"], case["level1"], case["level2"]])
        if aligned and 0 not in codes.tolist():
            report.equal(name, "codes", codes, case.get("accepted_codes", codes.tolist())[: len(codes)])
            report.equal(name, "every window is decoded", good.tolist(), [True] * len(windows))
        else:
            parts = codes.unfold(0, FRAME * WINDOW, FRAME)
            fine = ((parts >= 0) & (parts < self.size)).all(dim=1)
            report.equal(name, "windows with ids out of place are silent", good.tolist(), fine.tolist())

    def decode(self, name: str, report: Report) -> None:
        """Codes of every level -> samples, without noise and with the noise that is given."""
        levels = len(self.snac.facts.vq_strides)
        codes = [self.golden.given(f"{name}.codes{k}")[None] for k in range(levels)]
        report.close(
            name,
            "wav_no_noise",
            self.snac.net(codes)[0],
            self.golden.wanted(f"{name}.wav_no_noise"),
            NEAR,
            always_f32=True,
        )
        if self.golden.has(f"{name}.wav_noise"):
            stages = len(self.snac.facts.decoder_rates)
            noise = [self.golden.given(f"{name}.noise{k}")[None] for k in range(stages)]
            got = self.snac.net(codes, noise)[0]
            report.close(name, "wav_noise", got, self.golden.wanted(f"{name}.wav_noise"), NEAR, always_f32=True)

    def stream(self, report: Report) -> None:
        """Windows of four frames, one frame apart, in one batch; then what the reference has besides."""
        tokens = self.golden.given("stream.tokens")
        windows = tokens.unfold(0, FRAME * WINDOW, FRAME)
        emitted = self.snac.windows(windows, None)
        self._compare(report, "upstream_emitted", emitted)
        if self.golden.has("stream.upstream_emitted_int16"):
            wanted = self.golden.wanted("stream.upstream_emitted_int16")
            got = (emitted.cpu() * 32767).to(torch.int16)
            report.close("stream", "int16 within 1", got, wanted, 1.0, absolute=True, always_f32=True)
        alone = torch.cat([self.snac.windows(window[None], None) for window in windows])
        self._compare(report, "upstream_emitted", alone, "each window alone")
        levels, _ = self.snac.codes(windows[[0, -1]])
        first, last = self.snac.net(levels)
        self._compare(report, "first_window_full", first)
        self._compare(report, "last_window_full", last)
        frames = tokens.view(-1, FRAME)
        self._compare(report, "full_wav_no_noise", self._whole(frames))
        ended = torch.cat([frames[-3:], frames[-1:]]).flatten()
        self._compare(report, "flush_repeat_last_frame", self.snac.windows(ended[None], None)[0])
        code = (tokens[-1] - self.first) % self.size
        repeated = self.first + code + self.size * torch.arange(FRAME, device=tokens.device)
        ended = torch.cat([frames[-3:].flatten(), repeated])
        self._compare(report, "flush_repeat_last_token_mod4096", self.snac.windows(ended[None], None)[0])

    def _whole(self, frames: Tensor) -> Tensor:
        """All frames in one decode: the codes of each window's first frame, laid end to end."""
        padded = torch.stack([frames.roll(-k, 0) for k in range(WINDOW)], dim=1).flatten(1)
        levels, _ = self.snac.codes(padded)
        counts = self.snac.facts.codes_per_frame
        whole: Tensor = self.snac.net([level[:, :n].reshape(1, -1) for level, n in zip(levels, counts, strict=True)])
        return whole[0]

    def _compare(self, report: Report, role: str, got: Tensor, what: str = "") -> None:
        if self.golden.has(f"stream.{role}"):
            report.close("stream", what or role, got, self.golden.wanted(f"stream.{role}"), NEAR, always_f32=True)
