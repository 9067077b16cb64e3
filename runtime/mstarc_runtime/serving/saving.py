"""Where `mstarc call -o FILE` puts an answer: sound as .wav; arrays as .npy (one modality) or .npz (by modality); all of it as .json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mstarc_runtime.conductor.requests import Event
from mstarc_runtime.errors import BadRequest, RequestFailed
from mstarc_runtime.serving.audio import wav
from mstarc_runtime.serving.tensors import JSON
from mstarc_runtime.serving.walks import shown

KINDS = (".wav", ".npy", ".npz", ".json")
_NOT_ARRAYS = ("text", "audio")


def check_output(path: Path, request: str, outputs: Sequence[str]) -> None:
    """Raises BadRequest if a request with these outputs gives nothing that such a file holds."""
    if path.suffix not in KINDS:
        raise BadRequest(f"{path} is none of {', '.join(KINDS)}", "output")
    arrays = [name for name in outputs if name not in _NOT_ARRAYS]
    if path.suffix == ".wav" and "audio" not in outputs:
        raise BadRequest(f"request `{request}` gives no audio to write to {path}", "output")
    if path.suffix == ".npy" and len(arrays) != 1:
        raise BadRequest(f"request `{request}` gives {', '.join(outputs)}; write them to .npz or .json", "output")
    if path.suffix == ".npz" and not arrays:
        raise BadRequest(f"request `{request}` gives no arrays to write to {path}", "output")


def save(path: Path, events: Sequence[Event], pcm: bytes, rate: int) -> str:
    """Write the file; gives a line about it. Raises RequestFailed if nothing came, or the file cannot be written."""
    try:
        if path.suffix == ".wav":
            if not pcm:
                raise RequestFailed(f"no audio came; {path} was not written")
            path.write_bytes(wav(pcm, rate))
            return f"wrote {path}: {len(pcm) / 2 / rate:.2f} s at {rate} Hz"
        if path.suffix == ".json":
            path.write_text(json.dumps([shown(event, JSON) for event in events]) + "\n", encoding="utf-8")
            return f"wrote {path}: {len(events)} events"
        arrays = _by_modality(events)
        if not arrays:
            raise RequestFailed(f"no array came; {path} was not written")
        if path.suffix == ".npy":
            (array,) = arrays.values()
            np.save(path, array)
        else:
            np.savez(path, **arrays)
    except OSError as error:
        raise RequestFailed(f"{path} cannot be written: {error.strerror}") from None
    return f"wrote {path}: {', '.join(f'{name} {told(array)}' for name, array in arrays.items())}"


def _by_modality(events: Sequence[Event]) -> dict[str, Any]:
    """One array for each modality: what came, or what came one after another on a new dim 0. Raises RequestFailed for odd shapes."""
    found: dict[str, list[Any]] = {}
    for event in events:
        if event.modality not in _NOT_ARRAYS:
            found.setdefault(event.modality, []).append(np.asarray(event.value))
    for name, items in found.items():
        if len({item.shape for item in items}) > 1:
            raise RequestFailed(f"what came as {name} is not all of one shape; write it to .json")
    return {name: items[0] if len(items) == 1 else np.stack(items) for name, items in found.items()}


def told(value: Any) -> str:
    """A value in a few words: a small one as it is, an array by its dtype and shape."""
    array = np.asarray(value)
    return str(value) if array.size <= 16 else f"{array.dtype} {list(array.shape)}"
