"""Host Python of `specs/pi05.walk`: the prompt of a task and a state as token ids, and camera images as pixels. No torch.

Checkpoints of the binding: `pi05`, whose config.json gives the sizes (without it they are the published ones, or those of the node
`llm`), and `tokenizer`, a folder with PaliGemma's tokenizer.json; without it the file lies in the folder of `pi05`. Where the quantiles
of the robot's data are known (`stats.py`), states arrive and actions leave in its units, else both are normalised to [-1, 1].

The node `llm` may say how a robot names what it observes: `cameras`, in the order of the slots (else those of the checkpoint), and
`state_names`, the parts of its state (else `state`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mstarc_runtime.abi.levels import Levels
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest, LoadError
from mstarc_runtime.models.media import read_image
from mstarc_runtime.models.pi05.config import HostConfig, folder_of, read_host
from mstarc_runtime.models.pi05.images import batch
from mstarc_runtime.models.pi05.observation import bare, observed
from mstarc_runtime.models.pi05.robot import clean, normalise, prompt_text, unnormalise
from mstarc_runtime.models.pi05.stats import Stats, read_stats
from mstarc_runtime.program import Part

MAX_TASK = 10_000  # characters
MAX_CAMERAS = 16
_BOS = "<bos>"


class Pi05Host:
    """Tokenizer and image rules of pi0.5. Methods are pure."""

    def __init__(
        self,
        checkpoints: Mapping[str, Checkpoint],
        config: HostConfig,
        stats: Stats,
        cameras: Sequence[str],
        state_names: Sequence[str],
    ) -> None:
        self._checkpoints = checkpoints
        self.config = config
        self._stats = stats
        self._cameras = tuple(cameras)
        self._state_names = tuple(state_names)

    @classmethod
    def load(cls, checkpoints: Mapping[str, Checkpoint], config: Mapping[str, Mapping[str, Any]]) -> Pi05Host:
        """What `checkpoints.Externs` calls, once per process. Raises LoadError."""
        node = config.get("llm", {})
        checkpoint = checkpoints["pi05"] if "pi05" in checkpoints else Checkpoint()
        facts = read_host(checkpoint, node)
        stats = read_stats(None if checkpoint.path is None else folder_of(checkpoint), node)
        cameras = [bare([name]) for name in _names(node, "cameras", facts.cameras)]
        return cls(
            checkpoints, facts, stats, cameras, [bare([name]) for name in _names(node, "state_names", ("state",))]
        )

    def warm(self, methods: set[str]) -> None:
        """Load the tokenizer before the first request."""
        if "prompt" in methods:
            self.tokenizer.encode("warm")

    # ------------------------------------------------------------------------------------------------------------- externs

    def prompt(self, task: str, state: Any = None) -> NDArray[np.int64]:
        """Token ids i64 [T] of a task and a state [R], cut at the longest prompt as the public implementation does.

        Without a state the task stands alone on a line, as in fine-tunings that do not show the state. Raises BadRequest.
        """
        if not isinstance(task, str) or not clean(task).strip():
            raise BadRequest("`task` must be a text that says what to do", "task")
        if len(task) > MAX_TASK:
            raise BadRequest(f"`task` has {len(task)} characters; {MAX_TASK} are allowed", "task")
        if state is None:
            ids = self._encode(clean(task)) + self._encode("\n")
        else:
            ids = self._encode(prompt_text(task, self._state(state)))
        return np.asarray([self._bos, *ids][: self.config.max_tokens], dtype=np.int64)

    def cameras(self, images: Sequence[Any]) -> NDArray[np.float32] | Levels:
        """Images of the cameras that are there, in the order of the slots -> f32 [C, 3, size, size]. Raises BadRequest."""
        if not isinstance(images, list | tuple) or not 1 <= len(images) <= MAX_CAMERAS:
            raise BadRequest(f"`images` must be a list of 1 to {MAX_CAMERAS} camera images", "images")
        found = [read_image(image, f"images[{index}]") for index, image in enumerate(images)]
        return batch(found, self.config.image_size)

    # ------------------------------------------------------------------------------------------------------------- the robot

    def observe(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """What a robot's client sends -> inputs of the request `act`. Raises BadRequest naming what is unknown or missing."""
        found = observed(observation, self._cameras, self._state_names)
        return {**found, "images": [Part("image", data=image) for image in found["images"]]}

    def robot_actions(self, actions: Any) -> NDArray[np.float32]:
        """A chunk of the model f32 [horizon, action_dim] -> [horizon, A]: in the robot's units if they are known."""
        chunk = np.asarray(actions, np.float32)
        if self._stats.action is not None:
            return unnormalise(chunk, *self._stats.action)
        return chunk[:, : self.config.robot_actions]

    def robot(self) -> dict[str, Any]:
        """What a client is told when it connects."""
        return {
            "cameras": list(self._cameras),
            "state": list(self._state_names),
            "action_horizon": self.config.horizon,
            "action_dim": len(self._stats.action[0]) if self._stats.action else self.config.robot_actions,
            "units": "robot" if self._stats.action is not None else "normalised",
        }

    # ------------------------------------------------------------------------------------------------------------- the parts

    def _state(self, state: Any) -> NDArray[np.float32]:
        """The state normalised, f32 [R]."""
        try:
            values = np.asarray(state, np.float32)
        except (TypeError, ValueError):
            raise BadRequest("`state` must be a list of numbers", "state") from None
        if values.ndim != 1 or not 1 <= len(values) <= self.config.max_state:
            raise BadRequest(
                f"`state` is {list(values.shape)}; it has 1 to {self.config.max_state} numbers in a row", "state"
            )
        if not np.isfinite(values).all():
            raise BadRequest("`state` holds nan or infinity", "state")
        known = self._stats.state
        if known is None:
            return values
        if len(values) != len(known[0]):
            raise BadRequest(f"`state` has {len(values)} numbers, the robot's data has {len(known[0])}", "state")
        return normalise(values, *known)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        if max(ids, default=0) >= self.config.vocab:  # an index out of range would take a device down
            raise LoadError(
                f"the tokenizer gives id {max(ids)}, but pi0.5 has embeddings of {self.config.vocab} tokens"
            )
        return ids

    @cached_property
    def _bos(self) -> int:
        found: int | None = self.tokenizer.token_to_id(_BOS)
        if found is None:
            raise LoadError(f"the tokenizer of pi0.5 has no token `{_BOS}`")
        return found

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """PaliGemma's tokenizer. Names of special tokens in a task are text. Raises LoadError."""
        name = "tokenizer" if "tokenizer" in self._checkpoints else "pi05"
        path = folder_of(self._checkpoints[name] if name in self._checkpoints else Checkpoint()) / "tokenizer.json"
        try:
            made = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise LoadError(f"the tokenizer {path} cannot be read: {error}") from error
        made.encode_special_tokens = True
        return made


def _names(node: Mapping[str, Any], key: str, default: Sequence[str]) -> Sequence[str]:
    found = node.get(key, default)
    if not isinstance(found, list | tuple) or not found or not all(isinstance(name, str) and name for name in found):
        raise LoadError(f"pi0.5: `{key}` is {found!r}, not a list of names")
    return found
