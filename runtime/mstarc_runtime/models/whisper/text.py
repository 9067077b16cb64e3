"""Transcript ids -> text, by the checkpoint's tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from tokenizers import Tokenizer

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.bpe_text import TextStream, byte_pieces
from mstarc_runtime.models.whisper.config import folder_of


class TranscriptText:
    """The byte-level vocabulary of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises LoadError if tokenizer.json is missing, broken or has no end-of-text token."""
        path = folder_of(checkpoint) / "tokenizer.json"
        if not path.is_file():
            raise LoadError(f"{path} does not exist")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise LoadError(f"{path} cannot be read: {error}") from error
        end = self._tokenizer.token_to_id("<|endoftext|>")
        if end is None:
            raise LoadError(f"{path} has no token `<|endoftext|>`")
        self._end: int = end

    @cached_property
    def _pieces(self) -> list[bytes]:
        return byte_pieces(self._tokenizer, frozenset(range(self._end, self._tokenizer.get_vocab_size())))

    def transcript_text(self, ids: Iterable[int]) -> str:
        """Text of the ids, stripped. Ids from end-of-text on (special, language and timestamp tokens) are left out."""
        return str(self._tokenizer.decode([int(i) for i in ids if 0 <= int(i) < self._end])).strip()

    def token_bytes(self, token: int) -> bytes:
        """What one id adds to the text; nothing for special, language and timestamp tokens."""
        return self._pieces[token] if 0 <= token < self._end else b""

    def stream(self) -> TextStream:
        """A decoder for ids that arrive one by one."""
        return TextStream(self)
