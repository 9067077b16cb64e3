"""What a robot observes, as its client names it -> images in the order of the cameras, a state and a task. No torch.

An observation is a dict, nested or with paths for keys: `{"observation/images/base_0_rgb": …}` is `{"images": {"base_0_rgb": …}}`.
`observation`, `images` and `image` in front of a name say nothing. A name that nobody knows is refused: a camera that is misspelt would
be a camera that is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mstarc_runtime.errors import BadRequest

_FRONT = ("observation", "images", "image")
_TASK = ("prompt", "task")
_DEEPEST = 4


def observed(observation: Mapping[str, Any], cameras: Sequence[str], state_names: Sequence[str]) -> dict[str, Any]:
    """Inputs of a policy: `images`, `task`, and `state` if there is one. Raises BadRequest naming what is unknown or missing."""
    named: dict[str, tuple[str, Any]] = {}  # bare name -> name in the observation, value
    for path, value in _leaves(observation, ()):
        shown, name = "/".join(path), bare(path)
        if name in named:
            raise BadRequest(f"`{shown}` and `{named[name][0]}` are both `{name}`", shown)
        named[name] = (shown, value)
    known = {*cameras, *state_names, *_TASK}
    for name, (shown, _) in named.items():
        if name not in known:
            raise BadRequest(
                f"`{shown}` is unknown: the cameras are {', '.join(cameras)}; besides there are"
                f" {', '.join(state_names)} and {_TASK[0]}",
                shown,
            )
    images = [_picture(*reversed(named[name])) for name in cameras if name in named]
    if not images:
        raise BadRequest(f"the observation has no image; the cameras are {', '.join(cameras)}", "images")
    tasks = [named[name][1] for name in _TASK if name in named]
    if len(tasks) != 1 or not isinstance(_text(tasks[0]), str):
        raise BadRequest("the observation needs one `prompt`, a text that says what to do", _TASK[0])
    return {"images": images, "task": _text(tasks[0]), **_state(named, state_names)}


def bare(path: Sequence[str]) -> str:
    """The name at the end of a path, without what says nothing in front of it: `observation.images.left` is `left`."""
    parts = [part for piece in path for part in piece.replace(".", "/").split("/") if part]
    while len(parts) > 1 and parts[0] in _FRONT:
        parts = parts[1:]
    return "/".join(parts)


def _leaves(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, item in value.items():
        here = (*path, str(key))
        if isinstance(item, Mapping) and len(here) < _DEEPEST:
            yield from _leaves(item, here)
        else:
            yield here, item


def _text(value: Any) -> Any:
    """A text, also as an array of none dims, as some robots send it."""
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _picture(value: Any, shown: str) -> Any:
    """u8 [H, W, 3] of a frame that may be [3, H, W] or hold floats in 0..1; files of images stay as they are."""
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim == 3 and value.shape[0] == 3 and value.shape[2] != 3:
        value = np.moveaxis(value, 0, 2)
    if value.dtype.kind == "f":
        if not np.isfinite(value).all() or value.min(initial=0) < 0 or value.max(initial=0) > 1:
            raise BadRequest(f"`{shown}` must be u8, or floating-point numbers in 0..1", shown)
        value = (255 * value).astype(np.uint8)
    return np.ascontiguousarray(value)


def _state(named: Mapping[str, tuple[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """The state, its parts one behind another in the order of `names`; {} if none is there."""
    there = [name for name in names if name in named]
    if not there:
        return {}
    if len(there) < len(names):
        missing = next(name for name in names if name not in named)
        raise BadRequest(f"the state is {', '.join(names)}; `{missing}` is missing", missing)
    parts = []
    for name in names:
        shown, value = named[name]
        try:
            parts.append(np.atleast_1d(np.asarray(value, np.float32)))
        except (TypeError, ValueError):
            raise BadRequest(f"`{shown}` must be numbers", shown) from None
        if parts[-1].ndim != 1:
            raise BadRequest(f"`{shown}` has {parts[-1].ndim} dims; it must have 1", shown)
    return {"state": np.concatenate(parts)}
