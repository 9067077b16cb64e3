"""Verification of V-JEPA 2-AC: encoder, poses, teacher forcing, rollouts on the paged cache, plans. Cases are known by their tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mstarc_runtime.models.vjepa2.components import Critic, FrameEncoder, Predictor, goal_costs
from mstarc_runtime.models.vjepa2.nets import plain_norm
from mstarc_runtime.models.vjepa2.pose import next_pose, poses_along
from mstarc_runtime.models.vjepa2.rollout import geometry, imagine
from mstarc_runtime.verify.golden import Case, Golden, UnusableFolder
from mstarc_runtime.verify.report import Report
from mstarc_runtime.verify.setup import Item, Setup

PASS, LONG, NUMBER = 1e-4, 5e-4, 1e-5  # one pass; rollouts of four and more steps; poses and costs, absolute


def plan(golden: Golden, setup: Setup) -> list[Item]:
    """The cases of a folder."""
    parts = _Parts(golden, setup)
    return [Item(case.name, partial(_kind(parts, case), case)) for case in golden.listed()]


def _kind(parts: _Parts, case: Case) -> Callable[[Case, Report], None]:
    """What a case compares. Raises UnusableFolder for a case of no kind."""
    if "features" in case.outputs:
        return parts.encode
    if "new_pose" in case.outputs:
        return parts.pose
    if "goal_clip" in case.inputs:
        return parts.plan
    if "costs" in case.outputs:
        return parts.score
    if "context" in case.inputs:
        return parts.rollout
    if "features_normed" in case.inputs:
        return parts.teach
    raise UnusableFolder(f"case `{case.name}` is of no kind that is known here")


class _Parts:
    """The components, and what each kind of case compares."""

    def __init__(self, golden: Golden, setup: Setup) -> None:
        self.setup = setup
        self.encoder = FrameEncoder.load(setup.checkpoint(golden.folder, "encoder"), setup.node, setup.device)
        self.predictor = Predictor.load(setup.checkpoint(golden.folder, "predictor"), setup.node, setup.device)
        self.critic = Critic.share(self.predictor, setup.node, setup.device)
        self.tokens, self.width = self.predictor.config.tokens_per_frame, self.predictor.config.embed_dim

    def encode(self, case: Case, report: Report) -> None:
        """Frames each alone, or a clip whose tubelets hold frames together: as many frames of features tell which."""
        video, wanted = case.given("clip").transpose(1, 2), case.wanted("features")
        single = wanted.shape[1] == video.shape[1] * self.tokens
        raw, normed = (
            (self.encoder.raw_frames, self.encoder.frames) if single else (self.encoder.raw_clip, self.encoder.clip)
        )
        report.close(case.name, "features", raw(video).reshape(wanted.shape), wanted, PASS)
        wanted = case.wanted("features_normed")
        report.close(case.name, "features_normed", normed(video).reshape(wanted.shape), wanted, PASS)
        report.close(case.name, "last clip alone", normed(video[-1]).reshape(wanted[-1].shape), wanted[-1], PASS)

    def pose(self, case: Case, report: Report) -> None:
        """The pose after an action; on the host."""
        got = next_pose(case.given("pose").cpu().numpy(), case.given("action").cpu().numpy())
        report.close(case.name, "new_pose", got, case.wanted("new_pose"), NUMBER, absolute=True, always_f32=True)

    def teach(self, case: Case, report: Report) -> None:
        """One pass over given frames, and that its first frames equal a pass over these alone."""
        actions, states = case.given("actions"), case.given("states")
        z = case.given("features_normed").view(*actions.shape[:2], self.tokens, self.width)
        raw, forced = self.critic.net(z, actions, states), self.critic.teach(z, actions, states)
        wanted = case.wanted("predicted")
        report.close(case.name, "predicted", raw.reshape(wanted.shape), wanted, PASS)
        normed = plain_norm(wanted.view(z.shape))
        report.close(case.name, "layer-normed", forced, normed, PASS)
        if "predicted_normed" in case.outputs:
            wanted = case.wanted("predicted_normed")
            report.close(case.name, "predicted_normed", forced.reshape(wanted.shape), wanted, PASS)
        for k in range(1, z.shape[1]):
            prefix = self.critic.teach(z[:, :k], actions[:, :k], states[:, :k])
            report.close(case.name, f"first {k} frames alone", prefix, normed[:, :k], PASS)

    def rollout(self, case: Case, report: Report) -> None:
        """Poses along the actions; then every frame from the cache."""
        z, actions = case.given("context")[:, 0], case.given("actions")
        states = self._states(case, report, case.given("pose")[:, 0], actions)
        made = imagine(self.setup.engine(geometry(self.predictor.config)), self.predictor, z, actions, states)
        wanted = case.wanted("predicted")
        report.close(case.name, "predicted", made.reshape(wanted.shape), wanted, _tolerance(actions))

    def plan(self, case: Case, report: Report) -> None:
        """K candidates from one frame, batched: over the paged cache, and in one op. The best has the lowest cost."""
        goal = self.encoder.frames(case.given("goal_clip")[0].transpose(0, 1))
        report.close(case.name, "goal", goal, case.wanted("goal"), PASS)
        actions = case.given("actions")
        states = self._states(case, report, case.given("pose")[0, 0], actions)
        context = case.given("context")[:, 0].expand(len(actions), -1, -1)
        engine = self.setup.engine(geometry(self.predictor.config))
        made, wanted = imagine(engine, self.predictor, context, actions, states), case.wanted("predicted")
        report.close(case.name, "predicted", made, wanted, _tolerance(actions))
        self._costs(case, report, "costs", goal_costs(made[:, -1], goal[0]))
        best, costs, dreamt = self.critic.dream(context[0], actions, states, goal[0])
        report.close(case.name, "predicted in one op", dreamt, wanted, _tolerance(actions))
        self._costs(case, report, "costs in one op", costs)
        report.equal(case.name, "best of the op", int(best), int(costs.argmin()))

    def score(self, case: Case, report: Report) -> None:
        """K candidates, each one pass over the same frames."""
        actions, states, goal = case.given("actions"), case.given("states"), case.given("goal")
        z = case.given("features_normed").view(-1, self.tokens, self.width)
        best, costs, final = self.critic.score(z, actions, states, goal[0])
        self._costs(case, report, "costs", costs)
        report.equal(case.name, "best of the op", int(best), int(costs.argmin()))
        wanted = case.wanted("predicted_normed").view(*actions.shape[:2], self.tokens, self.width)
        report.close(case.name, "last frames", final, wanted[:, -1], PASS)
        taught = self.critic.teach(z.expand(len(actions), *z.shape), actions, states)
        report.close(case.name, "predicted_normed", taught, wanted, PASS)

    def _states(self, case: Case, report: Report, pose: Tensor, actions: Tensor) -> Tensor:
        states, final = map(torch.from_numpy, poses_along(pose.cpu(), actions.cpu()))
        for role, got in (("states", states), ("final_pose", final)):
            if role in case.outputs:
                wanted = case.wanted(role)
                report.close(case.name, role, got.reshape(wanted.shape), wanted, NUMBER, absolute=True, always_f32=True)
        return states.to(actions.device, actions.dtype)

    def _costs(self, case: Case, report: Report, what: str, costs: Tensor) -> None:
        wanted = case.wanted("costs")
        report.close(case.name, what, costs.reshape(wanted.shape), wanted, NUMBER, absolute=True)
        if "best_index" in case.expect:
            two = wanted.flatten().topk(min(2, wanted.numel()), largest=False).values
            decided = report.exact or float(two[-1] - two[0]) > report.loose * float(wanted.abs().max())
            best = int(costs.argmin()) if decided else case.expect["best_index"]
            report.equal(case.name, f"best_index by {what}", best, case.expect["best_index"])


def _tolerance(actions: Tensor) -> float:
    return LONG if actions.shape[1] >= 4 else PASS
