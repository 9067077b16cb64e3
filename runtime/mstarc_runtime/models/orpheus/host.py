"""Host Python of `specs/orpheus.walk`: the prompt of the language model from a text and a voice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest, LoadError

TEXT_SIZE = 2**16  # characters of one request: far more speech than `max_tokens` can make
_FILE = "tokenizer.json"


class OrpheusHost:
    """What stands around a text is `prompt_before` and `prompt_after` of the language model's section, ids both."""

    def __init__(self, checkpoint: Checkpoint | None, before: Sequence[int], after: Sequence[int], vocab: int) -> None:
        """`vocab`: embeddings of the language model. Raises LoadError for an id beyond them: it would take a device down."""
        self._checkpoint = checkpoint
        self._before = list(before)
        self._after = list(after)
        self._vocab = vocab
        self._check("prompt", [*before, *after])

    @classmethod
    def load(cls, checkpoints: Mapping[str, Checkpoint], config: Mapping[str, Mapping[str, Any]]) -> OrpheusHost:
        """The tokenizer lies with the checkpoint `orpheus`. Raises LoadError naming the key that is wrong."""
        node = config.get("llm", {})
        before, after = (_ids(node, key) for key in ("prompt_before", "prompt_after"))
        return cls(checkpoints.get("orpheus"), before, after, int(node.get("vocab_size", 0)))

    def warm(self, methods: set[str]) -> None:
        """Read the tokenizer before the first request."""
        assert self.tokenizer is not None

    def tokenize(self, text: str, voice: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """`voice: text` between the special ids [T]. Raises BadRequest naming `text`."""
        if not text.strip():
            raise BadRequest("`text` is empty", "text")
        if len(text) > TEXT_SIZE:
            raise BadRequest(f"`text` has {len(text)} characters; {TEXT_SIZE} are allowed", "text")
        spoken = self.tokenizer.encode(f"{voice}: {text}", add_special_tokens=False).ids
        self._check("tokenizer", spoken)
        return np.array([*self._before, *spoken, *self._after], dtype=np.int64)

    def _check(self, what: str, ids: Sequence[int]) -> None:
        if max(ids, default=-1) >= self._vocab:
            raise LoadError(
                f"Orpheus: the {what} gives id {max(ids)}, but the language model has embeddings of {self._vocab} tokens"
            )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the language model. Raises LoadError."""
        path = _file_of(self._checkpoint)
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises a plain Exception for all that is wrong with a file
            raise LoadError(f"Orpheus: {path} cannot be read: {error}") from error


def _file_of(checkpoint: Checkpoint | None) -> Path:
    if checkpoint is None or checkpoint.path is None:
        raise LoadError(f"Orpheus: no checkpoint `orpheus` is bound, in whose folder a {_FILE} would lie")
    path = checkpoint.path
    found = path / _FILE if path.is_dir() else path if path.name == _FILE else path.parent / _FILE
    if not found.exists():
        raise LoadError(f"Orpheus: {found} does not exist; it comes with the language model")
    return found


def _ids(config: Mapping[str, Any], key: str) -> list[int]:
    found = config.get(key)
    if not isinstance(found, list | tuple) or not all(isinstance(each, int) and each >= 0 for each in found):
        raise LoadError(f"Orpheus: `llm.{key}` is {found!r}, not a list of ids")
    return list(found)
