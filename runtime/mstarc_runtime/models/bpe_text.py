"""Text of a byte-level BPE model: chat prompt, token ids, and text from ids as they arrive. No transformers at run time.

The vocabulary and the chat template come from GGUF metadata, or from `tokenizer.json` and `tokenizer_config.json` of a HF folder.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest, LoadError
from mstarc_runtime.models.gguf_file import GgufFile

_CONTROL, _USER_DEFINED = 3, 4  # token types of GGUF
_MARK = "\ue000"  # private use: stands for a part of the prompt that is not text
_GUARD = "\ue001"  # private use: breaks the name of a special token that a message holds as text


class Written(str):
    """A piece of a prompt with names of special tokens in it that the messages wrote: only the template's are special.

    `runs`: the piece in parts, each with whether it is a special token's name and stands for that token.
    """

    __slots__ = ("runs",)
    runs: tuple[tuple[str, bool], ...]

    @classmethod
    def of(cls, runs: Iterable[tuple[str, bool]]) -> Written:
        kept = tuple(run for run in runs if run[0])
        made = cls("".join(text for text, _ in kept))
        made.runs = kept
        return made


class ChatText:
    """The text side of one language model. Methods are pure; `stream` gives a new decoder."""

    def __init__(self, tokenizer: Tokenizer, special: Iterable[int], template: str, names: dict[str, str]) -> None:
        """`special` ids have no text; `names` are the special tokens that the template may use (`bos_token`, `eos_token`)."""
        self.tokenizer = tokenizer
        chosen = frozenset(special)
        self._bytes = byte_pieces(tokenizer, chosen)
        found = sorted((tokenizer.id_to_token(token) or "" for token in chosen), key=len, reverse=True)
        self._special = re.compile("|".join(re.escape(name) for name in found if len(name) > 1) or r"(?!)")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(template)
        except TemplateError as error:
            raise LoadError(f"the chat template cannot be read: {error}") from error
        self._names = names

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> ChatText:
        """From the model's checkpoint. Raises LoadError naming what is missing."""
        if checkpoint.path is None:
            raise LoadError("a tokenizer needs a checkpoint")
        return _from_folder(checkpoint.path) if checkpoint.path.is_dir() else _from_gguf(GgufFile(checkpoint.path))

    # -------------------------------------------------------------------------------------------------------------- prompt

    def render(self, messages: Sequence[tuple[str, Any]], answer: bool = True) -> list[Any]:
        """Messages (role, content) -> the prompt in pieces, in order: text, and the parts that are not text as they are.

        Content is a str, a part (its `text` attribute if it has one), or a list of these. With `answer` the prompt ends where the
        assistant begins. What a message writes stays text, also if it is the name of a special token: such a piece is a
        `Written`. Raises BadRequest if the template refuses the messages.
        """
        parts: list[Any] = []
        flat = [(role, _flat(content)) for role, content in messages]
        said = [role for role, _ in flat] + [item for _, items in flat for item in items if isinstance(item, str)]
        mark, guard = _unused(_MARK, said), _unused(_GUARD, said)
        shown = [
            {"role": self._guarded(role, guard), "content": self._guarded(_marked(items, parts, mark), guard)}
            for role, items in flat
        ]
        try:
            prompt = self._template.render(messages=shown, add_generation_prompt=answer, **self._names)
        except TemplateError as error:
            raise BadRequest(f"the chat template of the model refuses the messages: {error}", "messages") from error
        pieces: list[Any] = []
        for index, text in enumerate(prompt.split(mark)):
            if index:
                pieces.append(parts[index - 1])
            if text:
                pieces.append(self._unguarded(text, guard))
        return pieces

    def _guarded(self, text: str, guard: str) -> str:
        """The text with a guard after the first character of each special token's name."""
        return self._special.sub(lambda found: found[0][0] + guard + found[0][1:], text)

    def _unguarded(self, text: str, guard: str) -> str:
        """The text without guards: a `Written` if there were any."""
        if guard not in text:
            return text
        runs: list[tuple[str, bool]] = []
        end = 0
        for found in self._special.finditer(text):
            runs += [(text[end : found.start()].replace(guard, ""), False), (found[0], True)]
            end = found.end()
        return Written.of([*runs, (text[end:].replace(guard, ""), False)])

    def encode(self, text: str) -> list[int]:
        """Ids of a text. Names of special tokens in it (`<|im_end|>`) become those tokens, as the template needs; in a `Written`,
        only those that the template wrote.
        """
        if isinstance(text, Written):
            return [token for run, special in text.runs for token in (self.encode(run) if special else self.plain(run))]
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def plain(self, text: str) -> list[int]:
        """Ids of a text in which nothing is special."""
        if self._special.search(text) is None:
            return self.encode(str(text))
        ids: list[int] = self._literal.encode(text, add_special_tokens=False).ids
        return ids

    @cached_property
    def _literal(self) -> Tokenizer:
        """A tokenizer that takes the names of special tokens for text."""
        made = Tokenizer.from_str(self.tokenizer.to_str())
        made.encode_special_tokens = True
        return made

    # ---------------------------------------------------------------------------------------------------------------- text

    def text(self, ids: Iterable[int]) -> str:
        """The text of ids; special tokens are left out, bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def piece(self, token: int) -> str:
        """The text of one id by itself; the bytes of a character that it holds only a part of are left out."""
        return self.token_bytes(token).decode("utf-8", "ignore")

    def token_bytes(self, token: int) -> bytes:
        """What one id adds to the text; nothing for special tokens and ids without a token."""
        return self._bytes[token] if 0 <= token < len(self._bytes) else b""

    def stream(self) -> TextStream:
        """A decoder for ids that arrive one by one."""
        return TextStream(self)


class Vocabulary(Protocol):
    """What gives the bytes of an id."""

    def token_bytes(self, token: int) -> bytes: ...


class TextStream:
    """Text from ids as they arrive: no character is split, and all that `push` and `finish` give together is the whole text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that this id completes; often one word, sometimes nothing."""
        return self._decoder.decode(self._vocabulary.token_bytes(token))

    def finish(self) -> str:
        """What is left at the end: U+FFFD if the last character is incomplete."""
        return self._decoder.decode(b"", final=True)


# ----------------------------------------------------------------------------------------------------------------- prompts


def _flat(content: Any) -> list[Any]:
    items = content if isinstance(content, list | tuple) else [content]
    return [item.text if isinstance(getattr(item, "text", None), str) else item for item in items]


def _marked(items: list[Any], parts: list[Any], mark: str) -> str:
    """The items as one text; what is not text goes to `parts` and leaves a mark."""
    shown = ""
    for item in items:
        if isinstance(item, str):
            shown += item
        else:
            parts.append(item)
            shown += mark
    return shown


def _unused(mark: str, texts: Sequence[str]) -> str:
    """The mark, so often that no text holds it."""
    found = mark
    while any(found in text for text in texts):
        found += mark
    return found


def _refuse(message: str) -> None:
    raise TemplateError(message)


# ----------------------------------------------------------------------------------------------------------------- loading


def byte_of_character() -> dict[str, int]:
    """The characters that byte-level BPE writes for bytes: printable Latin-1 for itself, the others from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def byte_pieces(tokenizer: Tokenizer, special: frozenset[int]) -> list[bytes]:
    """The bytes that each id of a byte-level vocabulary adds to a text; nothing for special ones."""
    bytes_of = byte_of_character()
    added = tokenizer.get_added_tokens_decoder()
    found: list[bytes] = []
    for token in range(tokenizer.get_vocab_size()):
        name = tokenizer.id_to_token(token)
        if name is None or token in special:
            found.append(b"")
        elif token in added:
            found.append(name.encode())
        else:
            found.append(bytes(bytes_of[character] for character in name))
    return found


def _from_gguf(file: GgufFile) -> ChatText:
    kind, rule = file.field("tokenizer.ggml.model", str), file.field("tokenizer.ggml.pre", str)
    if kind != "gpt2" or rule not in ("smollm", "gpt-2", "default"):
        raise LoadError(f"{file.path.name}: tokenizer `{kind}` with rule `{rule}` is not supported")
    names: list[str] = file.field("tokenizer.ggml.tokens", list)
    kinds: list[int] = file.field("tokenizer.ggml.token_type", list)
    merges = [tuple(merge.split(" ")) for merge in file.field("tokenizer.ggml.merges", list)]
    if len(kinds) != len(names) or any(len(merge) != 2 for merge in merges):
        raise LoadError(f"{file.path.name}: the vocabulary's lists do not fit each other")
    try:
        tokenizer = Tokenizer(BPE(vocab={name: n for n, name in enumerate(names)}, merges=merges))
    except Exception as error:  # the library raises plain Exception
        raise LoadError(f"{file.path.name}: the vocabulary cannot be used: {error}") from error
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if rule == "smollm" else []
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    special = [n for n, kind in enumerate(kinds) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(names[n], special=True, normalized=False) for n in special])
    own = [n for n, kind in enumerate(kinds) if kind == _USER_DEFINED]
    tokenizer.add_tokens([AddedToken(names[n], normalized=False) for n in own])
    marks = {
        f"{side}_token": names[file.fields[f"tokenizer.ggml.{side}_token_id"]]
        for side in ("bos", "eos")
        if f"tokenizer.ggml.{side}_token_id" in file.fields
    }
    return ChatText(tokenizer, special, file.field("tokenizer.chat_template", str), marks)


def _from_folder(folder: Path) -> ChatText:
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
        described = json.loads(path.read_text(encoding="utf-8"))
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except Exception as error:  # the library raises plain Exception
        raise LoadError(f"the tokenizer in {folder} cannot be read: {error}") from error
    if (described.get("decoder") or {}).get("type") != "ByteLevel":
        raise LoadError(f"{path}: only byte-level BPE is supported")
    template = config.get("chat_template")
    if not isinstance(template, str):
        raise LoadError(f"{folder / 'tokenizer_config.json'}: `chat_template` is missing")
    added = tokenizer.get_added_tokens_decoder()
    names = {side: _token_name(config[side]) for side in ("bos_token", "eos_token") if config.get(side)}
    return ChatText(tokenizer, [n for n, token in added.items() if token.special], template, names)


def _token_name(value: Any) -> str:
    return str(value["content"] if isinstance(value, dict) else value)
