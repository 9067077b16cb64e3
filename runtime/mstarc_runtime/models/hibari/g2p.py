"""English text -> phoneme ids of the voice: `phonemes("Hello there.")`.

The grapheme-to-phoneme rules and lexicons are those of the registry package hibari-tts (its `hibari.g2p`); words outside the
lexicons are read by our own `oov.UnknownWords`, so that onnxruntime is not needed. The package's cost grows with the cube of the
length of a run without blanks, and it raises on some numbers; both are bounded here.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.hibari.oov import UnknownWords

PAD = 0  # opens and closes every utterance
LONGEST = 400  # phonemes of one utterance, without the pads
_PIECE = 300  # characters handed to the package at once
_RUN = re.compile(r"\S{41,}")
_DIGITS = re.compile(r"\d{25,}")  # the package names numbers below 10**36
_PAUSES = ";:,.!?—…"
_SILENT = frozenset(_PAUSES + '"()“” ')


class Phonemizer:
    """text -> ids. `folder` is the assets folder of hibari-tts; the lexicons come with the installed package."""

    def __init__(self, folder: Path) -> None:
        path = folder / "vocab.json"
        try:
            self._ids: dict[str, int] = {
                str(k): int(v) for k, v in json.loads(path.read_text(encoding="utf-8")).items()
            }
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise LoadError(f"{path}: is no table of phonemes: {error!r}") from error
        self._spell: Callable[[str], str] = _g2p(UnknownWords(folder))

    def __call__(self, text: str) -> list[int]:
        """Phoneme ids of a phrase: utterances of at most 400 phonemes, each between two pads; [] if there is nothing to say.

        Never fails: what cannot be read (emoji, other scripts) is left out, and where the package raises on a piece of
        the text, the piece is read word by word without the words that it raises on.
        """
        ids: list[int] = []
        for utterance in _utterances(" ".join(filter(None, map(self._read, _pieces(text))))):
            known = [self._ids[symbol] for symbol in utterance if symbol in self._ids]
            if any(symbol in self._ids and symbol not in _SILENT for symbol in utterance):
                ids += [PAD, *known, PAD]
        return ids

    def _read(self, piece: str) -> str:
        try:
            return self._spell(piece)
        except Exception:  # the package documents no errors; one odd word must not lose the phrase
            return " ".join(filter(None, map(self._read_word, piece.split())))

    def _read_word(self, word: str) -> str:
        try:
            return self._spell(word)
        except Exception:
            return ""


@lru_cache(maxsize=2)
def phonemizer(folder: Path) -> Phonemizer:
    """The phonemizer of an assets folder; loaded once per process (about 0.7 s, 100 MB)."""
    return Phonemizer(folder)


def phonemes(text: str) -> list[int]:
    """Phoneme ids of a phrase, by the phonemizer of the installed package. See `Phonemizer.__call__`.

    Raises `LoadError` if hibari-tts is not installed.
    """
    return phonemizer(package_assets())(text)


def package_assets() -> Path:
    """Assets folder of the installed hibari-tts; `LoadError` if there is none."""
    spec = find_spec("hibari")
    if spec is None or not spec.submodule_search_locations:
        raise LoadError("the voice needs the package hibari-tts, which is not installed")
    return Path(spec.submodule_search_locations[0]) / "assets"


def _g2p(unknown: Callable[[str], str | None]) -> Callable[[str], str]:
    try:
        module: Any = importlib.import_module("hibari.g2p")
        g2p: Callable[[str], str] = module.G2P(oov=unknown)
    except (ImportError, OSError, ValueError, AttributeError) as error:
        raise LoadError(f"grapheme to phoneme needs the package hibari-tts: {error}") from error
    return g2p


def _pieces(text: str) -> Iterator[str]:
    """The text with blanks made single and long runs broken, cut at blanks into pieces of bounded length."""
    text = _DIGITS.sub(lambda run: _broken(run.group(), 24), text)
    text = _RUN.sub(lambda run: _broken(run.group(), 40), text)
    words = text.split()
    piece = ""
    for word in words:
        if piece and len(piece) + len(word) >= _PIECE:
            yield piece
            piece = ""
        piece = f"{piece} {word}" if piece else word
    if piece:
        yield piece


def _broken(run: str, size: int) -> str:
    return " ".join(run[i : i + size] for i in range(0, len(run), size))


def _utterances(spelled: str) -> Iterator[str]:
    """Cut after the last pause among the first 400 phonemes, else at the last blank, else hard."""
    while len(spelled) > LONGEST:
        head = spelled[:LONGEST]
        cut = max(head.rfind(f"{pause} ") for pause in _PAUSES) + 1 or head.rfind(" ") + 1 or LONGEST
        yield spelled[:cut].strip()
        spelled = spelled[cut:].strip()
    if spelled:
        yield spelled
