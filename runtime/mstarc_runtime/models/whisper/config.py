"""Facts of a Whisper checkpoint (CTranslate2 or HF folder) -> `WhisperConfig`: sizes, special ids, suppress lists. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.config_json import read_json
from mstarc_runtime.models.whisper import ct2

CT2_FILE = "model.bin"

_MULTILINGUAL_VOCAB = 51865  # an English-only vocabulary has 51864 entries although its tokenizer lists the languages
_SIZES = (
    "n_mels", "d_model", "encoder_layers", "encoder_heads", "encoder_ffn", "decoder_layers", "decoder_heads", "decoder_ffn",
    "vocab_size", "source_positions", "target_positions",
)  # fmt: skip


_NAMED_IDS = {
    "start_id": "<|startoftranscript|>", "translate_id": "<|translate|>", "transcribe_id": "<|transcribe|>",
    "no_timestamps_id": "<|notimestamps|>",
}  # fmt: skip
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """What a spec, a loader and a sampler need to know.

    `prompt_ids` are forced by default; of an English-only model they are start, no-timestamps. `languages`: id by ISO 639-1 code;
    empty if the model hears English only. `special`: ids by name, such as `<|translate|>`.
    """

    n_mels: int
    d_model: int
    encoder_layers: int
    encoder_heads: int
    encoder_ffn: int
    decoder_layers: int
    decoder_heads: int
    decoder_ffn: int
    vocab_size: int
    source_positions: int
    target_positions: int
    eos_token_id: int
    suppress_tokens: tuple[int, ...]
    begin_suppress_tokens: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    languages: Mapping[str, int]
    special: Mapping[str, int]

    @property
    def head_dim(self) -> int:
        """Numbers of one head of the decoder."""
        return self.d_model // self.decoder_heads

    @property
    def n_frames(self) -> int:
        """Mel frames of one window: the second convolution halves them."""
        return 2 * self.source_positions


def folder_of(checkpoint: Checkpoint) -> Path:
    """The checkpoint's folder; its path may name the weight file in it. Raises LoadError if there is none."""
    if checkpoint.path is None:
        raise LoadError(
            "Whisper needs a checkpoint: a CTranslate2 folder (model.bin) or an HF folder (model.safetensors)"
        )
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    if not checkpoint.path.exists():
        raise LoadError(f"{checkpoint.path} does not exist")
    return folder


def read_config(checkpoint: Checkpoint, language: str = "en", task: str = "transcribe") -> WhisperConfig:
    """Read the facts of either layout; `language` and `task` choose the forced prompt of a multilingual model.

    Raises LoadError naming the file and key that is missing or wrong.
    """
    folder = folder_of(checkpoint)
    if (folder / CT2_FILE).exists():
        return _from_ct2(folder, language, task)
    return _from_hf(folder, language, task)


def read_agreeing(checkpoint: Checkpoint, config: Mapping[str, Any]) -> WhisperConfig:
    """The facts, where every size that `config` states is the checkpoint's. Raises LoadError naming the size that differs.

    Ids and lists may differ: a binding may suppress other tokens or force another prompt.
    """
    facts = read_config(checkpoint)
    for name in _SIZES:
        if name in config and config[name] != getattr(facts, name):
            raise LoadError(
                f"`{name}` is {config[name]} in the binding, {getattr(facts, name)} in the Whisper checkpoint"
            )
    return facts


def config_values(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
    """The facts as the values that a spec's `config { x = node.key }` names. `config` may hold `language` and `task`."""
    facts = read_config(checkpoint, str(config.get("language", "en")), str(config.get("task", "transcribe")))
    return {
        **{name: getattr(facts, name) for name in (*_SIZES, "n_frames", "head_dim", "eos_token_id")},
        **{name: list(getattr(facts, name)) for name in ("suppress_tokens", "begin_suppress_tokens", "prompt_ids")},
        **{key: facts.special[name] for key, name in _NAMED_IDS.items() if name in facts.special},
        "language_ids": sorted(facts.languages.values()),
    }


def _from_ct2(folder: Path, language: str, task: str) -> WhisperConfig:
    """Sizes come from the tensors (the JSON has none), the suppress lists from config.json, special ids from tokenizer.json."""
    variables = ct2.read_model(folder / CT2_FILE).variables
    lists = read_json(folder / "config.json")
    vocab_size, d_model = _shape(variables, "decoder/embeddings/weight", 2)
    ids = _added_tokens(folder)
    multilingual = vocab_size >= _MULTILINGUAL_VOCAB
    return WhisperConfig(
        n_mels=_shape(variables, "encoder/conv1/weight", 3)[1],
        d_model=d_model,
        encoder_layers=_layers(variables, "encoder"),
        encoder_heads=_heads(variables, "encoder"),
        encoder_ffn=_shape(variables, "encoder/layer_0/ffn/linear_0/weight", 2)[0],
        decoder_layers=_layers(variables, "decoder"),
        decoder_heads=_heads(variables, "decoder"),
        decoder_ffn=_shape(variables, "decoder/layer_0/ffn/linear_0/weight", 2)[0],
        vocab_size=vocab_size,
        source_positions=_shape(variables, "encoder/position_encodings/encodings", 2)[0],
        target_positions=_shape(variables, "decoder/position_encodings/encodings", 2)[0],
        eos_token_id=_token(ids, "<|endoftext|>"),
        suppress_tokens=_ids(lists, "suppress_ids", vocab_size),
        begin_suppress_tokens=_ids(lists, "suppress_ids_begin", vocab_size),
        prompt_ids=_prompt(ids, multilingual, language, task),
        languages=_languages(ids) if multilingual else {},
        special=ids,
    )


def _from_hf(folder: Path, language: str, task: str) -> WhisperConfig:
    """Sizes from config.json, ids from generation_config.json."""
    sizes, generation = read_json(folder / "config.json"), read_json(folder / "generation_config.json")
    if sizes.get("model_type") != "whisper":
        raise LoadError(f"config.json: model_type is {sizes.get('model_type')!r}, not 'whisper'")
    vocab_size = _int(sizes, "vocab_size")
    ids = {str(k): int(v) for k, v in generation.get("lang_to_id", {}).items()}
    ids |= {f"<|{k}|>": int(v) for k, v in generation.get("task_to_id", {}).items()}
    ids["<|startoftranscript|>"] = _int(generation, "decoder_start_token_id")
    ids["<|notimestamps|>"] = _int(generation, "no_timestamps_token_id")
    multilingual = bool(generation.get("is_multilingual", True))
    return WhisperConfig(
        n_mels=_int(sizes, "num_mel_bins"),
        d_model=_int(sizes, "d_model"),
        encoder_layers=_int(sizes, "encoder_layers"),
        encoder_heads=_int(sizes, "encoder_attention_heads"),
        encoder_ffn=_int(sizes, "encoder_ffn_dim"),
        decoder_layers=_int(sizes, "decoder_layers"),
        decoder_heads=_int(sizes, "decoder_attention_heads"),
        decoder_ffn=_int(sizes, "decoder_ffn_dim"),
        vocab_size=vocab_size,
        source_positions=_int(sizes, "max_source_positions"),
        target_positions=_int(sizes, "max_target_positions"),
        eos_token_id=_int(generation, "eos_token_id"),
        suppress_tokens=_ids(generation, "suppress_tokens", vocab_size),
        begin_suppress_tokens=_ids(generation, "begin_suppress_tokens", vocab_size),
        prompt_ids=_prompt(ids, multilingual, language, task),
        languages=_languages(ids) if multilingual else {},
        special=ids,
    )


def _prompt(ids: Mapping[str, int], multilingual: bool, language: str, task: str) -> tuple[int, ...]:
    if not multilingual and (language, task) != ("en", "transcribe"):
        raise LoadError(f"the model hears English only; language `{language}`, task `{task}` cannot be asked of it")
    names = ["<|startoftranscript|>"]
    if multilingual:
        names += [f"<|{language}|>", f"<|{task}|>"]
    return tuple(_token(ids, name) for name in [*names, "<|notimestamps|>"])


def _languages(ids: Mapping[str, int]) -> dict[str, int]:
    """Ids of language tokens by code."""
    found = {name: _LANGUAGE.fullmatch(name) for name in ids}
    return {match[1]: ids[name] for name, match in found.items() if match is not None}


def _token(ids: Mapping[str, int], name: str) -> int:
    if name not in ids:
        raise LoadError(f"the checkpoint has no token `{name}`")
    return ids[name]


def _added_tokens(folder: Path) -> dict[str, int]:
    tokens = read_json(folder / "tokenizer.json").get("added_tokens", [])
    return {str(token["content"]): int(token["id"]) for token in tokens}


def _int(values: Mapping[str, Any], key: str) -> int:
    found = values.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise LoadError(f"`{key}` of the checkpoint is {found!r}, not a count or id")
    return found


def _ids(values: Mapping[str, Any], key: str, vocab_size: int) -> tuple[int, ...]:
    found = values.get(key, [])
    if not isinstance(found, list) or not all(isinstance(i, int) and 0 <= i < vocab_size for i in found):
        raise LoadError(f"`{key}` of the checkpoint is not a list of ids below {vocab_size}")
    return tuple(found)


def _shape(variables: Mapping[str, ct2.Tensor], name: str, rank: int) -> tuple[int, ...]:
    if name not in variables:
        raise LoadError(f"{CT2_FILE}: variable `{name}` is missing")
    if variables[name].ndim != rank:
        raise LoadError(f"{CT2_FILE}: `{name}` has shape {list(variables[name].shape)}, expected {rank} dims")
    return tuple(variables[name].shape)


def _layers(variables: Mapping[str, ct2.Tensor], half: str) -> int:
    prefix = f"{half}/layer_"
    indices = {name[len(prefix) :].partition("/")[0] for name in variables if name.startswith(prefix)}
    return len(indices - {"norm"})


def _heads(variables: Mapping[str, ct2.Tensor], half: str) -> int:
    name = f"{half}/num_heads"
    if name not in variables or variables[name].size != 1:
        raise LoadError(f"{CT2_FILE}: variable `{name}` is missing")
    return int(variables[name].item())
