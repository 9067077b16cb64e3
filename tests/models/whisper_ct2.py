"""Writes a CTranslate2 Whisper folder from an HF one, for the tests of the reader: the format's other direction, in its plainest form."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_CODES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}


def write_ct2_folder(
    folder: Path, source: Path, dtype: Any, change: Callable[[dict[str, Any]], object] = lambda variables: None
) -> Path:
    """model.bin (float variables as `dtype`), config.json and tokenizer.json of the HF checkpoint in `source`."""
    config = json.loads((source / "config.json").read_text())
    generation = json.loads((source / "generation_config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    variables: dict[str, Any] = {
        "decoder/activation": np.int8(3), "decoder/alibi": np.int8(0), "decoder/pre_norm": np.int8(1),
        "decoder/alignment_heads": np.int16(1), "decoder/alignment_layer": np.int16(-1), "decoder/scale_embeddings": np.int8(0),
        "decoder/start_from_zero_embedding": np.int8(0), "decoder/num_heads": np.int16(config["decoder_attention_heads"]),
        "encoder/num_heads": np.int16(config["encoder_attention_heads"]),
    }  # fmt: skip
    for half in ("encoder", "decoder"):
        own = {
            name.removeprefix(f"model.{half}."): t.astype(dtype)
            for name, t in tensors.items()
            if name.startswith(f"model.{half}.")
        }
        variables |= {f"{half}/{name}": value for name, value in _half(half, own, config[f"{half}_layers"]).items()}
    change(variables)
    _write(folder / "model.bin", variables, {"decoder/projection/weight": "decoder/embeddings/weight"})
    lists = {"suppress_ids": generation["suppress_tokens"], "suppress_ids_begin": generation["begin_suppress_tokens"]}
    (folder / "config.json").write_text(json.dumps(lists))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def byte_tokenizer() -> Tokenizer:
    """256 bytes, then the special tokens in the order of the reference checkpoint (end 256, start 257, … no-timestamps 273)."""
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.decoder = decoders.ByteLevel()
    languages = [f"<|{code}|>" for code in ("en", "zh", "de", "es", "ru", "ko", "fr", "ja", "pt", "tr")]
    tasks = ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    names = ["<|endoftext|>", "<|startoftranscript|>", *languages, *tasks]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def _half(half: str, own: dict[str, Any], layers: int) -> dict[str, Any]:
    out = {"position_encodings/encodings": own["embed_positions.weight"], **_norm("layer_norm", own, "layer_norm")}
    if half == "encoder":
        out |= {f"{conv}/{leaf}": own[f"{conv}.{leaf}"] for conv in ("conv1", "conv2") for leaf in ("weight", "bias")}
    else:
        out["embeddings/weight"] = own["embed_tokens.weight"]
    for i in range(layers):
        hf, ct = f"layers.{i}", f"layer_{i}"
        out |= _norm(f"{ct}/self_attention/layer_norm", own, f"{hf}.self_attn_layer_norm")
        out |= _norm(f"{ct}/ffn/layer_norm", own, f"{hf}.final_layer_norm")
        out |= _linear(f"{ct}/self_attention/linear_0", own, [f"{hf}.self_attn.{p}_proj" for p in "qkv"])
        out |= _linear(f"{ct}/self_attention/linear_1", own, [f"{hf}.self_attn.out_proj"])
        out |= _linear(f"{ct}/ffn/linear_0", own, [f"{hf}.fc1"]) | _linear(f"{ct}/ffn/linear_1", own, [f"{hf}.fc2"])
        if half == "decoder":
            out |= _norm(f"{ct}/attention/layer_norm", own, f"{hf}.encoder_attn_layer_norm")
            out |= _linear(f"{ct}/attention/linear_0", own, [f"{hf}.encoder_attn.q_proj"])
            out |= _linear(f"{ct}/attention/linear_1", own, [f"{hf}.encoder_attn.{p}_proj" for p in "kv"])
            out |= _linear(f"{ct}/attention/linear_2", own, [f"{hf}.encoder_attn.out_proj"])
    return out


def _norm(name: str, own: dict[str, Any], source: str) -> dict[str, Any]:
    return {f"{name}/gamma": own[f"{source}.weight"], f"{name}/beta": own[f"{source}.bias"]}


def _linear(name: str, own: dict[str, Any], sources: list[str]) -> dict[str, Any]:
    """Stacked row-wise; a projection without a bias gets zeros."""
    weights = [own[f"{source}.weight"] for source in sources]
    biases = [own.get(f"{source}.bias", np.zeros(len(w), w.dtype)) for source, w in zip(sources, weights, strict=True)]
    return {f"{name}/weight": np.concatenate(weights), f"{name}/bias": np.concatenate(biases)}


def _write(path: Path, variables: dict[str, Any], aliases: dict[str, str]) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<I", 6) + _name("WhisperSpec") + struct.pack("<II", 3, len(variables)))
        for name, value in sorted(variables.items()):
            array = np.asarray(value)
            file.write(_name(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape))
            file.write(struct.pack("<BI", _CODES[array.dtype.name], array.nbytes) + array.tobytes())
        file.write(struct.pack("<I", len(aliases)) + b"".join(_name(a) + _name(v) for a, v in sorted(aliases.items())))


def _name(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"
