"""The components of V-JEPA 2 specs.

V-JEPA 2: `Encoder` (op encode) and `MaskedPredictor` (ops predict, roll), both stateless. V-JEPA 2-AC: `FrameEncoder` (ops frames,
clip), stateless; `Predictor` (op step), a transformer; `Critic` (ops pass, score, dream), stateless on the predictor's weights. Stateless
ops take one request, or (with `batch stack`) several on dim 0, except `score` and `dream`. Features are f32 whatever the weights are: the
node's config may hold `dtype` (float32, bfloat16, float16). A request whose shapes do not fit the model raises BadRequest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint, Run
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.models.vjepa2 import config as sizes
from mstarc_runtime.models.vjepa2 import weights
from mstarc_runtime.models.vjepa2.config import AcConfig, EncoderConfig, MaskedConfig
from mstarc_runtime.models.vjepa2.nets import AcPredictorNet, EncoderNet, MaskedPredictorNet, pick, plain_norm
from mstarc_runtime.weights import Fit

MAX_CANDIDATES = 1024  # of one request
MAX_ROWS = 2**14  # of all candidates that are run at once


class Encoder:
    """`encode(video: f32[T, 3, H, W]) -> z: f32[N, d]`: tokens ordered by frame pair, row, column."""

    def __init__(self, net: EncoderNet, config: EncoderConfig) -> None:
        self.net = net
        self.config = config

    @classmethod
    def config_values(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
        """Config values of the node, for the linker. Raises LoadError."""
        return _encoder_values(sizes.read_encoder(checkpoint, sizes.own_section(checkpoint, config)))

    @classmethod
    def fit(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> Fit:
        """What `load` fills. Raises LoadError."""
        return weights.prepared(EncoderNet, sizes.read_encoder(checkpoint, config), checkpoint)[1]

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Encoder:
        """Weights of the encoder half. Raises LoadError."""
        facts = sizes.read_encoder(checkpoint, config)
        return cls(weights.load(EncoderNet, facts, checkpoint, config, device), facts)

    def encode(self, video: Tensor) -> Tensor:
        """Normalised frames; one frame alone is repeated to fill a tubelet."""
        check_video(self.config, video)
        features: Tensor = self.net(_batched(video, 5)).float()
        return features if video.dim() == 5 else features[0]


class MaskedPredictor:
    """Predicts features at token positions from those at others. Positions beyond the clip are in its future."""

    def __init__(self, net: MaskedPredictorNet, config: MaskedConfig) -> None:
        self.net = net
        self.config = config

    @classmethod
    def config_values(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
        """Config values of the node, for the linker. Raises LoadError."""
        facts = sizes.read_masked(checkpoint, sizes.own_section(checkpoint, config))
        return {"embed_dim": facts.embed_dim, "tokens_per_frame": facts.tokens_per_frame, "tubelet_size": facts.tubelet}

    @classmethod
    def fit(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> Fit:
        """What `load` fills. Raises LoadError."""
        return weights.prepared(MaskedPredictorNet, sizes.read_masked(checkpoint, config), checkpoint)[1]

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> MaskedPredictor:
        """Weights of the predictor half. Raises LoadError."""
        facts = sizes.read_masked(checkpoint, config)
        return cls(weights.load(MaskedPredictorNet, facts, checkpoint, config, device), facts)

    def predict(self, z: Tensor, context: Tensor, targets: Tensor) -> Tensor:
        """`predict(z: f32[N, d], context: i64[C], targets: i64[P]) -> f32[P, d]`: z at `context` is shown; results follow `targets`."""
        _check_width(self.config.embed_dim, z)
        if context.numel() and not 0 <= int(context.min()) <= int(context.max()) < z.shape[-2]:
            raise BadRequest(f"context positions must lie in 0..{z.shape[-2] - 1}, the tokens of the clip", "context")
        if not targets.numel() or int(targets.min()) < 0:
            raise BadRequest("targets must be positions of 0 or more, at least one", "targets")
        several = z.dim() == 3
        z, context, targets = _batched(z, 3), _batched(context, 2), _batched(targets, 2)
        predicted: Tensor = self.net(pick(z, context), context, targets).float()
        return predicted if several else predicted[0]

    def roll(self, window: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """`roll(window: f32[N, d], targets: i64[P]) -> (next: f32[N, d], predicted: f32[P, d])`: a step of the masked rollout.

        The window's tokens stand at 0..N-1 in every step, the targets are those of frames after it; the prediction then pushes
        the oldest tokens out of the window. Source: the anticipation wrapper of the public implementation.
        """
        tokens, count = window.shape[-2], targets.shape[-1]
        if count > tokens:
            raise BadRequest(f"a rollout step predicts {count} tokens, its window has {tokens}", "targets")
        context = torch.arange(tokens, device=window.device).expand(*window.shape[:-1])
        predicted = self.predict(window, context, targets)
        return torch.cat([window[..., count:, :], predicted.to(window.dtype)], dim=-2), predicted


class FrameEncoder:
    """The encoder of V-JEPA 2-AC. Features are layer-normed (no affine), as the predictor takes them."""

    def __init__(self, net: EncoderNet, config: EncoderConfig) -> None:
        self.net = net
        self.config = config

    @classmethod
    def config_values(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
        """Config values of the node, for the linker. Raises LoadError."""
        return _encoder_values(sizes.read_ac_encoder(checkpoint, sizes.own_section(checkpoint, config)))

    @classmethod
    def fit(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> Fit:
        """What `load` fills. Raises LoadError."""
        return weights.prepared(EncoderNet, sizes.read_ac_encoder(checkpoint, config), checkpoint, ac=True)[1]

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> FrameEncoder:
        """Weights of the encoder half. Raises LoadError."""
        facts = sizes.read_ac_encoder(checkpoint, config)
        return cls(weights.load(EncoderNet, facts, checkpoint, config, device, ac=True), facts)

    def usual_shapes(self, op: str) -> list[tuple[tuple[int, ...], ...]]:
        """Rollouts encode one frame."""
        frame = (1, self.config.channels, self.config.size, self.config.size)
        return [(frame,)] if op == "frames" else []

    def frames(self, video: Tensor) -> Tensor:
        """`frames(video: f32[T, 3, H, W]) -> z: f32[T, n, d]`: each frame alone, repeated to fill a tubelet of its own."""
        return plain_norm(self.raw_frames(video))

    def raw_frames(self, video: Tensor) -> Tensor:
        """As `frames`, before the layer norm."""
        check_video(self.config, video)
        alone = video.flatten(0, -4)[:, None] if video.dim() == 5 else video[:, None]
        features: Tensor = self.net(alone).float()
        return features.view(*video.shape[:-3], *features.shape[1:])

    def clip(self, video: Tensor) -> Tensor:
        """`clip(video: f32[T, 3, H, W]) -> z: f32[T/2, n, d]`: consecutive frames share tubelets, and all see each other."""
        return plain_norm(self.raw_clip(video))

    def raw_clip(self, video: Tensor) -> Tensor:
        """As `clip`, before the layer norm."""
        check_video(self.config, video)
        features: Tensor = self.net(_batched(video, 5)).float().unflatten(1, (-1, self.config.tokens_per_frame))
        return features if video.dim() == 5 else features[0]


class Predictor:
    """The action-conditioned predictor over a paged cache: `step(z: f32[n, d], action: f32[A], state: f32[A]) -> next: f32[n, d]`.

    The op's attributes are `attend full takes n + 2 positions same advance 1`: the position is the frame's index.
    """

    def __init__(self, net: AcPredictorNet, config: AcConfig) -> None:
        self.net = net
        self.config = config

    @classmethod
    def config_values(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
        """Config values of the node, for the linker: those of the spec and of its cache. Raises LoadError."""
        return _predictor_values(sizes.read_ac_predictor(checkpoint, sizes.own_section(checkpoint, config)))

    @classmethod
    def fit(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> Fit:
        """What `load` fills. Raises LoadError."""
        return weights.prepared(AcPredictorNet, sizes.read_ac_predictor(checkpoint, config), checkpoint, ac=True)[1]

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Predictor:
        """Weights of the predictor half. Raises LoadError."""
        facts = sizes.read_ac_predictor(checkpoint, config)
        return cls(weights.load(AcPredictorNet, facts, checkpoint, config, device, ac=True), facts)

    def step(self, run: Run, z: Tensor, action: Tensor, state: Tensor) -> Tensor:
        """Frames z [B, n, D] with their actions and poses [B, A] -> the next frames, layer-normed [B, n, D]."""
        return plain_norm(self.net.step(run, z, action, state))


class Critic:
    """Scores what the predictor imagines: teacher forcing, and the costs of K candidates. Stateless, without a cache."""

    def __init__(self, net: AcPredictorNet, config: AcConfig) -> None:
        self.net = net
        self.config = config

    @classmethod
    def config_values(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
        """Config values of the node, for the linker. Raises LoadError."""
        return _predictor_values(sizes.read_ac_predictor(checkpoint, sizes.own_section(checkpoint, config)))

    @classmethod
    def share(cls, owner: Predictor, config: Mapping[str, Any], device: str) -> Critic:
        """The net of the predictor that this node has `weights of`."""
        return cls(owner.net, owner.config)

    def teach(self, z: Tensor, actions: Tensor, states: Tensor) -> Tensor:
        """The op `pass(z: f32[T, n, d], actions: f32[T, A], states: f32[T, A]) -> next: f32[T, n, d]`.

        Row t is the prediction of frame t + 1 from frames 0..t, layer-normed.
        """
        several = z.dim() == 4
        z, actions, states = _batched(z, 4), _batched(actions, 3), _batched(states, 3)
        self._check(z, actions, states)
        predicted = plain_norm(self.net(z, actions, states))
        return predicted if several else predicted[0]

    def score(self, z: Tensor, actions: Tensor, states: Tensor, goal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`score(z: f32[T, n, d], actions, states: f32[K, T, A], goal: f32[n, d]) -> (best: i64, costs: f32[K], final: f32[K, n, d])`.

        Each candidate is one teacher-forced pass over the same frames; its cost is the mean absolute difference of its last
        prediction and the goal.
        """
        self._check_candidates(actions, states)
        shown = z.expand(len(actions), *z.shape)
        self._check(shown, actions, states)
        self._check_frame(goal, "goal")
        final = torch.cat(
            [plain_norm(self.net(*part)[:, -1]) for part in self._portions(z.shape[0], shown, actions, states)]
        )
        costs = goal_costs(final, goal)
        return costs.argmin(), costs, final

    def dream(self, z: Tensor, actions: Tensor, states: Tensor, goal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`dream(z: f32[n, d], actions, states: f32[K, H, A], goal: f32[n, d]) -> (best: i64, costs: f32[K], made: f32[K, H, n, d])`.

        Each candidate is a rollout of H frames from z, all rolled out together; its cost is that of its last frame.
        """
        self._check_candidates(actions, states)
        self._check_frame(z, "z")
        self._check_frame(goal, "goal")
        if states.shape != actions.shape or actions.shape[2] != self.config.action_dim or not actions.shape[1]:
            raise BadRequest(f"states are {list(states.shape)}, actions {list(actions.shape)}; one for each", "states")
        parts = self._portions(actions.shape[1], z.expand(len(actions), *z.shape), actions, states)
        made = torch.cat([self.net.dream(*part) for part in parts])
        costs = goal_costs(made[:, -1], goal)
        return costs.argmin(), costs, made

    def _portions(self, frames: int, *columns: Tensor) -> list[tuple[Tensor, ...]]:
        """Candidates in groups whose rows, of `frames` frames each, take bounded memory."""
        most = max(1, MAX_ROWS // (frames * self.config.rows))
        return list(zip(*(torch.split(column, most) for column in columns), strict=True))

    def _check_candidates(self, actions: Tensor, states: Tensor) -> None:
        if actions.dim() != 3 or states.dim() != 3 or not 1 <= len(actions) <= MAX_CANDIDATES:
            raise BadRequest(
                f"candidates are [1..{MAX_CANDIDATES}, T, {self.config.action_dim}], got {list(actions.shape)}",
                "actions",
            )

    def _check_frame(self, frame: Tensor, name: str) -> None:
        wanted = [self.config.tokens_per_frame, self.config.embed_dim]
        if list(frame.shape) != wanted:
            raise BadRequest(f"`{name}` is {list(frame.shape)}, expected {wanted}", name)

    def _check(self, z: Tensor, actions: Tensor, states: Tensor) -> None:
        if z.shape[-2:] != (self.config.tokens_per_frame, self.config.embed_dim) or not z.shape[1]:
            wanted = ["T", self.config.tokens_per_frame, self.config.embed_dim]
            raise BadRequest(f"frames are {wanted}, got {list(z.shape[1:])}", "z")
        for name, given in (("actions", actions), ("states", states)):
            if given.shape != (*z.shape[:2], self.config.action_dim):
                wanted = [z.shape[1], self.config.action_dim]
                raise BadRequest(
                    f"{name} must be {wanted}, one row per frame; got {list(given.shape[1:])} in each of {len(given)}",
                    name,
                )


setattr(Critic, "pass", Critic.teach)  # the op's name is a keyword of Python


def goal_costs(final: Tensor, goal: Tensor) -> Tensor:
    """Cost of each imagined frame [K, n, d] against the goal [n, d]: the mean absolute difference, f32 [K]."""
    return (final - goal).abs().mean(dim=(-2, -1))


def check_video(config: EncoderConfig, video: Tensor) -> None:
    """Raise BadRequest unless the video is [T, C, H, W] or [B, T, C, H, W] of the model's size, with a frame or more."""
    wanted = (config.channels, config.size, config.size)
    if video.dim() not in (4, 5) or tuple(video.shape[-3:]) != wanted or not video.numel():
        raise BadRequest(f"a video is [T, {', '.join(map(str, wanted))}], got {list(video.shape)}", "video")


def _check_width(width: int, z: Tensor) -> None:
    if z.dim() not in (2, 3) or z.shape[-1] != width or not z.numel():
        raise BadRequest(f"features are [N, {width}], got {list(z.shape)}", "z")


def _batched(x: Tensor, dims: int) -> Tensor:
    """With a batch dim of 1 if there is none."""
    return x if x.dim() == dims else x[None]


def _encoder_values(facts: EncoderConfig) -> dict[str, Any]:
    return {
        "embed_dim": facts.stack.width,
        "tokens_per_frame": facts.tokens_per_frame,
        "image_size": facts.size,
        "tubelet_size": facts.tubelet,
    }


def _predictor_values(facts: AcConfig) -> dict[str, Any]:
    stack = facts.stack
    return {
        "embed_dim": facts.embed_dim,
        "tokens_per_frame": facts.tokens_per_frame,
        "action_dim": facts.action_dim,
        "layers": stack.depth,
        "heads": stack.heads,
        "head_dim": stack.head_dim,
    }
