"""Reads words that no lexicon holds: a character transformer of 0.7 M parameters, one word in, phonemes out.

Weights, alphabets and decoding rule are those of `oov.onnx` and `oov.json` of hibari-tts 0.2.1: each character opens four
output slots, each slot takes its most likely phoneme or blank; repeats are merged, blanks dropped (CTC).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.hibari.layers import NORM_EPS, Dense, EncoderLayer, fill
from mstarc_runtime.models.hibari.onnxfile import read_weights


class Reader(nn.Module):
    """Character ids i64 [L <= 24] -> phoneme or blank (0) of each slot, i64 [4 L]."""

    def __init__(self, letters: int, phonemes: int, slots: int, longest: int) -> None:
        super().__init__()
        channels = 128
        self.slots = slots
        self.pos = nn.Buffer(torch.empty(longest, channels))
        self.emb = nn.Embedding(letters + 1, channels)
        self.layers = nn.ModuleList(EncoderLayer(channels, 3 * channels, 4, Dense) for _ in range(4))
        self.norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.head = Dense(channels, slots * (phonemes + 1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids) + self.pos[: ids.shape[0]]
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.head(self.norm(x))
        return scores.view(ids.shape[0] * self.slots, -1).argmax(-1)


class UnknownWords:
    """Callable: word -> phonemes, or None if no character of it is known."""

    def __init__(self, folder: Path) -> None:
        path = folder / "oov.json"
        try:
            meta = json.loads(path.read_text(encoding="utf-8"))
            letters, phonemes = list(meta["in"]), list(meta["out"])
            slots, self._longest = int(meta["slots"]), int(meta["maxlen"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LoadError(f"{path}: is no alphabet of the word reader: {error!r}") from error
        self._letters = {letter: i + 1 for i, letter in enumerate(letters)}
        self._phonemes = ["", *phonemes]
        self._reader = Reader(len(letters), len(phonemes), slots, self._longest)
        weights = folder / "oov.onnx"
        with torch.inference_mode():
            fill(self._reader, read_weights(weights), "m.", weights)

    def __call__(self, word: str) -> str | None:
        ids = [self._letters[letter] for letter in word if letter in self._letters][: self._longest]
        if not ids:
            return None
        with torch.inference_mode():
            slots: list[int] = self._reader(torch.tensor(ids)).tolist()
        return "".join(self._phonemes[new] for old, new in zip([0, *slots], slots, strict=False) if new != old)
