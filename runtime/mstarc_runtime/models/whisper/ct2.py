"""Reads a CTranslate2 `model.bin` (binary version 6) of a Whisper model; gives its tensors under the names of the HF layout.

Layout, little-endian: u32 version; name of the spec; u32 revision; u32 count, then per variable its name, u8 rank, u32 dims,
u8 dtype, u32 bytes, data; u32 count of aliases, two names each. A name is u16 length (with the closing zero byte) and the bytes.
Facts from the documented `model_spec` of CTranslate2 4.x; the file fuses q, k, v (and k, v of cross attention) row-wise.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstarc_runtime.errors import LoadError
from mstarc_runtime.weights import Weight, weight

Tensor = NDArray[Any]

_VERSION = 6
_DTYPES: dict[int, Any] = {
    0: np.float32,
    1: np.int8,
    2: np.int16,
    3: np.int32,
    4: np.float16,
}  # 5, bfloat16, has no numpy type
_GELU = 3  # index of the exact GELU among the activations
_EXPECTED_FLAGS = {
    "decoder/activation": _GELU,
    "decoder/alibi": 0,
    "decoder/pre_norm": 1,
    "decoder/scale_embeddings": 0,
    "decoder/start_from_zero_embedding": 0,
}
_UNUSED = ("decoder/alignment_heads", "decoder/alignment_layer")  # word timestamps
_PLAIN = {
    "encoder/conv1": "conv1",
    "encoder/conv2": "conv2",
    "encoder/position_encodings/encodings": "embed_positions.weight",
    "encoder/layer_norm": "layer_norm",
    "decoder/embeddings": "embed_tokens",
    "decoder/position_encodings/encodings": "embed_positions.weight",
    "decoder/layer_norm": "layer_norm",
}
_LAYER_PARTS = {
    "self_attention/layer_norm": "self_attn_layer_norm",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "ffn/layer_norm": "final_layer_norm",
    "ffn/linear_0": "fc1",
    "ffn/linear_1": "fc2",
    "self_attention/linear_0": "self_attn.q_proj+k_proj+v_proj",
    "self_attention/linear_1": "self_attn.out_proj",
    "attention/linear_0": "encoder_attn.q_proj",
    "attention/linear_1": "encoder_attn.k_proj+v_proj",
    "attention/linear_2": "encoder_attn.out_proj",
}
_LEAVES = {"gamma": "weight", "beta": "bias", "weight": "weight", "bias": "bias"}


@dataclass(frozen=True, slots=True)
class Model:
    """A parsed file; the arrays are views of the mapped file."""

    spec: str
    revision: int
    variables: dict[str, Tensor]
    aliases: dict[str, str]


class _Cursor:
    """Reads the mapped file front to back; a read past the end is a LoadError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
        self.at = 0

    def take(self, count: int) -> NDArray[np.uint8]:
        if self.at + count > len(self.bytes):
            raise LoadError(
                f"{self.path.name} is cut short: {count} bytes wanted at {self.at}, the file has {len(self.bytes)}"
            )
        self.at += count
        return self.bytes[self.at - count : self.at]

    def number(self, code: str) -> int:
        return int(struct.unpack("<" + code, self.take(struct.calcsize("<" + code)).tobytes())[0])

    def name(self) -> str:
        raw = self.take(self.number("H")).tobytes()
        if not raw.endswith(b"\0"):
            raise LoadError(
                f"{self.path.name} is not a CTranslate2 model: no name where one should end, at byte {self.at}"
            )
        return raw[:-1].decode("utf-8", "replace")


def read_model(path: Path) -> Model:
    """Parse the file. Raises LoadError on another version, an unknown dtype, a wrong size, a cut file or bytes left over."""
    cursor = _Cursor(path)
    version = cursor.number("I")
    if version != _VERSION:
        raise LoadError(
            f"{path.name} is not a CTranslate2 model of binary version {_VERSION}: it starts with {version}"
        )
    spec, revision = cursor.name(), cursor.number("I")
    variables = dict(_variable(cursor) for _ in range(cursor.number("I")))
    aliases = {}
    for _ in range(cursor.number("I")):
        alias = cursor.name()
        aliases[alias] = cursor.name()
    if cursor.at != len(cursor.bytes):
        raise LoadError(f"{path.name} has {len(cursor.bytes) - cursor.at} bytes after its end")
    return Model(spec, revision, variables, aliases)


def _variable(cursor: _Cursor) -> tuple[str, Tensor]:
    name = cursor.name()
    shape = tuple(cursor.number("I") for _ in range(cursor.number("B")))
    code = cursor.number("B")
    dtype = _DTYPES.get(code)
    if dtype is None:
        raise LoadError(f"{cursor.path.name}: `{name}` has dtype {code}, which is not supported")
    raw = cursor.take(cursor.number("I"))
    items = 1
    for size in shape:
        items *= size
    if raw.size != items * np.dtype(dtype).itemsize:
        raise LoadError(f"{cursor.path.name}: `{name}` of shape {list(shape)} has {raw.size} bytes")
    return name, np.frombuffer(raw, dtype=dtype).reshape(shape)


def whisper_tensors(model: Model, file: str) -> dict[str, Weight]:
    """The float tensors, unread, named as in the HF layout.

    Raises LoadError for a variable that no Whisper model has, a flag that asks for another network, or an untied head.
    """
    _check_network(model)
    tensors: dict[str, Weight] = {}
    for name, value in model.variables.items():
        half = name.partition("/")[0]
        if half not in ("encoder", "decoder"):
            raise LoadError(f"{file}: unexpected variable `{name}`")
        if name == f"{half}/num_heads" or name in _EXPECTED_FLAGS or name in _UNUSED:
            continue
        if value.dtype not in (np.float16, np.float32):
            raise LoadError(f"{file}: `{name}` is {value.dtype}; only float16 and float32 models are supported")
        for target, part in _rename(name, value):
            full = f"model.{half}.{target}"
            tensors[full] = weight(full, part.shape, str(part.dtype), file, partial(_read, part))
    return tensors


def _read(part: Tensor) -> Any:
    import torch

    return torch.from_numpy(part.astype("float32"))


def _check_network(model: Model) -> None:
    if model.spec != "WhisperSpec":
        raise LoadError(f"the CTranslate2 model is a {model.spec}, not a WhisperSpec")
    for name, wanted in _EXPECTED_FLAGS.items():
        found = model.variables.get(name)
        if found is not None and found.item() != wanted:
            raise LoadError(f"`{name}` is {found.item()}, Whisper has {wanted}")
    head = model.aliases.get("decoder/projection/weight")
    if head != "decoder/embeddings/weight":
        raise LoadError(f"the head is `{head or 'decoder/projection/weight'}`, not tied to the token embeddings")


def _rename(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    if name in _PLAIN:
        yield _PLAIN[name], value
        return
    owner, _, leaf = name.rpartition("/")
    if leaf not in _LEAVES:
        raise LoadError(f"unexpected variable `{name}`")
    if owner in _PLAIN:
        yield f"{_PLAIN[owner]}.{_LEAVES[leaf]}", value
        return
    side, layer, part = ([*owner.split("/", 2), "", ""])[:3]
    target = _LAYER_PARTS.get(part)
    index = layer.removeprefix("layer_")
    if (
        target is None
        or not layer.startswith("layer_")
        or not index.isdecimal()
        or (side == "encoder" and part.startswith("attention/"))
    ):
        raise LoadError(f"unexpected variable `{name}`")
    yield from _unfuse(name, f"layers.{index}.{target}", _LEAVES[leaf], value)


def _unfuse(name: str, target: str, leaf: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Cut a fused projection row-wise. The bias of `k_proj` must be zero: Whisper has none."""
    owner, _, fused = target.rpartition(".")
    parts = fused.split("+")
    if len(value) % len(parts):
        raise LoadError(f"`{name}` has {len(value)} rows, which {len(parts)} projections cannot share")
    for part, rows in zip(parts, np.split(value, len(parts)), strict=True):
        if part == "k_proj" and leaf == "bias":
            if rows.any():
                raise LoadError(f"`{name}` has a bias for the keys, Whisper has none")
            continue
        yield f"{owner}.{part}.{leaf}", rows
