"""Verification of V-JEPA 2: encoder, masked predictor, masked rollout. A case is known by the outputs that it lists."""

from __future__ import annotations

import torch
from torch import Tensor

from mstarc_runtime.models.vjepa2.components import Encoder, MaskedPredictor
from mstarc_runtime.models.vjepa2.host import VideoHost
from mstarc_runtime.models.vjepa2.nets import pick
from mstarc_runtime.verify.golden import Case, Golden
from mstarc_runtime.verify.report import Report
from mstarc_runtime.verify.setup import Item, Setup, items_of

STEP, LATER = 1e-4, 3e-4  # the first step of a rollout, and those after it


def plan(golden: Golden, setup: Setup) -> list[Item]:
    """The cases of a folder."""
    parts = _Parts(golden, setup)
    runs = {"last_hidden_state": parts.encode, "predictor_output": parts.predict, "predicted": parts.rollout}
    return items_of(golden, runs)


class _Parts:
    """The components, and what each kind of case compares."""

    def __init__(self, golden: Golden, setup: Setup) -> None:
        self.encoder = Encoder.load(setup.checkpoint(golden.folder, "encoder"), setup.node, setup.device)
        self.predictor = MaskedPredictor.load(setup.checkpoint(golden.folder, "predictor"), setup.node, setup.device)
        self.host = VideoHost.load({"vjepa2": golden.checkpoint}, {})

    def encode(self, case: Case, report: Report) -> None:
        """A batch of clips, and its last clip alone."""
        video, wanted = case.given("pixel_values_videos"), case.wanted("last_hidden_state")
        report.close(case.name, "last_hidden_state", self.encoder.encode(video), wanted, STEP)
        report.close(case.name, "last clip alone", self.encoder.encode(video[-1]), wanted[-1], STEP)
        if "patch_embeddings" in case.outputs:
            embedded = self.encoder.net.embed(video.to(next(self.encoder.net.parameters()).dtype))
            report.close(case.name, "patch_embeddings", embedded, case.wanted("patch_embeddings"), STEP)

    def predict(self, case: Case, report: Report) -> None:
        """A batch with its positions, and its last row alone."""
        z = self.encoder.encode(case.given("pixel_values_videos"))
        context, targets = self._masks(case, z)
        wanted = case.wanted("predictor_output")
        report.close(case.name, "predictor_output", self.predictor.predict(z, context, targets), wanted, STEP)
        alone = self.predictor.predict(z[-1], context[-1], targets[-1])
        report.close(case.name, "last row alone", alone, wanted[-1], STEP)
        for role, ids in (("masked_hidden_state", context), ("target_hidden_state", targets)):
            if role in case.outputs:
                report.close(case.name, role, pick(z, ids), case.wanted(role), STEP)

    def _masks(self, case: Case, z: Tensor) -> tuple[Tensor, Tensor]:
        """Context and target positions; all tokens where the case gives none."""
        if "context_mask" not in case.inputs:
            every = torch.arange(z.shape[1], device=z.device).expand(len(z), -1)
            return every, every
        return case.given("context_mask"), case.given("target_mask")

    def rollout(self, case: Case, report: Report) -> None:
        """Target positions from seconds, then every step, in a batch of one and without a batch."""
        video = case.given("pixel_values_videos")
        params = case.params
        targets = torch.from_numpy(
            self.host.after(
                video[0].cpu().numpy(),
                params["anticipation_seconds"],
                params["frames_per_second"],
                params["num_output_frames"],
            )
        )
        window = self.encoder.encode(video)
        report.equal(case.name, "target_positions", targets[None], case.wanted("target_positions"))
        if "skip_tokens" in case.expect:
            skipped = int(targets[0]) - window.shape[1]
            report.equal(case.name, "skip_tokens", skipped, case.expect["skip_tokens"])
        targets = targets.to(window.device)
        for what, start, ids in (("batched", window, targets[None]), ("alone", window[0], targets)):
            rolled = start
            for step, wanted in enumerate(case.wanted("predicted")):
                rolled, predicted = self.predictor.roll(rolled, ids)
                tolerance = STEP if step == 0 else LATER
                report.close(case.name, f"step {step} {what}", predicted.view(wanted.shape), wanted, tolerance)
            final = case.wanted("final_window")
            report.close(case.name, f"final_window {what}", rolled.view(final.shape), final, LATER)
