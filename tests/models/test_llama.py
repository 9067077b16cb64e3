"""Llama: parity with transformers on SmolLM2 (the tiny golden: tests/verify), GGUF reading, the cache of prepared tensors, load errors."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.engines.transformer import Call, OpSpec
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models import llama_weights
from mstarc_runtime.models.gguf_file import GgufFile
from mstarc_runtime.models.llama import Llama
from mstarc_runtime.models.llama_config import LlamaConfig
from tests.models.llama_helpers import READ, engine_of, greedy, hf_names, smollm2
from tests.shipped import loader, ruled

GOLDEN = Path(__file__).parents[1] / "goldens" / "orpheus"
load = loader("orpheus")


def gguf_load(checkpoint: Checkpoint) -> tuple[LlamaConfig, dict[str, torch.Tensor]]:
    """Facts and prepared tensors of a GGUF file."""
    return llama_weights.load(ruled("ask", Llama, checkpoint))


ALL_ROWS = OpSpec("llm.all", ("packed",), ("packed", "packed"))


@pytest.fixture(scope="module")
def cases() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "cases.safetensors")


@pytest.fixture(scope="module")
def model() -> Llama:
    return load(Llama, Checkpoint(path=GOLDEN), {}, "cpu")


def near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max()


# ------------------------------------------------------------------------------------------------------------------ golden


@pytest.mark.parametrize("cuts", [[40], [39, 1], [1, 16, 17, 6], [1] * 40])
def test_a_prompt_read_in_pieces_gives_the_same_logits(
    model: Llama, cases: dict[str, torch.Tensor], cuts: list[int]
) -> None:
    engine = engine_of(model.facts)
    context = Context(engine.pool)
    for piece in cases["lm.2.input_ids"].split(cuts):
        (logits,) = engine.call(model.read, READ, [Call((piece,), (context,), len(piece))])
    near(logits[0], cases["lm.2.prefill_logits"][-1])


def test_greedy_ids_alone_and_together(model: Llama, cases: dict[str, torch.Tensor]) -> None:
    prompts = [cases[f"lm.{n}.input_ids"].tolist() for n in range(3)]
    wanted = [cases[f"lm.{n}.generated_pen1.0"].tolist() for n in range(3)]
    assert [greedy(model, [prompt], 24)[0] for prompt in prompts] == wanted
    assert greedy(model, prompts, 24) == wanted


def test_config_values_name_what_specs_ask_for() -> None:
    values = Llama.config_values(Checkpoint(path=GOLDEN), {})
    assert values["vocab_size"] == 420 and values["eos_token_id"] == 401 and values["head_dim"] == 24


# ------------------------------------------------------------------------------------------------------------- load errors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(GOLDEN / name, tmp_path / name)
    return tmp_path


def edit(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refused(folder: Path, pattern: str) -> None:
    with pytest.raises(LoadError, match=pattern):
        load(Llama, Checkpoint(path=folder), {}, "cpu")


def test_missing_and_unexpected_tensors_are_named(folder: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.self_attn.q_proj.bias"] = tensors.pop("model.layers.1.self_attn.q_proj.weight")[
            :, 0
        ].clone()

    edit(folder, change)
    refused(
        folder,
        r"`model\.layers\.1\.self_attn\.q_proj\.weight` is missing: rule 6 .* makes `1\.qkv` of it, which model\.safetensors "
        r"does not have; near it: `model\.layers\.1\.self_attn\.q_proj\.bias`$",
    )


def test_a_misshaped_tensor_is_named(folder: Path) -> None:
    edit(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(63)}))
    refused(folder, r"`norm` is \[63\], not \[64\]: rule 5 .* makes it of `model\.norm\.weight` \[63\]")


def test_an_integer_tensor_is_named(folder: Path) -> None:
    edit(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}))
    refused(folder, r"`model\.norm\.weight` is int8")


def test_a_head_that_is_not_tied_is_refused(folder: Path) -> None:
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}))
    refused(folder, "`model.embed_tokens.weight` and `lm_head.weight` of model.safetensors differ; they are tied")


@pytest.mark.parametrize(
    "change, pattern",
    [
        ({"num_hidden_layers": None}, "config.json"),
        ({"model_type": "mistral"}, "not the configuration of a Llama"),
        ({"attention_bias": True}, "biases are not supported"),
        ({"num_key_value_heads": 3}, "do not share 3 KV heads evenly"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "`yarn` is not supported"),
        ({"num_hidden_layers": 4}, "`3.norm1` .* is missing: .*layers.3"),
        ({"num_hidden_layers": 2}, "layers.2.*is not used: there is no parameter `2.qkv`"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(folder: Path, change: dict[str, Any], pattern: str) -> None:
    values = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    refused(folder, pattern)


def test_damaged_and_missing_files(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    refused(folder, "cannot be read")
    (folder / "model.safetensors").unlink()
    refused(folder, "has neither model.safetensors nor pytorch_model.bin")
    (folder / "config.json").write_text("{")
    refused(folder, "config.json cannot be read")


def test_random_weights_without_a_checkpoint() -> None:
    sizes = json.loads((GOLDEN / "config.json").read_text())
    first, again = (Llama.load(Checkpoint(), {**sizes, "seed": 3}, "cpu") for _ in range(2))
    other = Llama.load(Checkpoint(), {**sizes, "seed": 4}, "cpu")
    prompt = [[5, 6, 7]]
    assert greedy(first, prompt, 6) == greedy(again, prompt, 6) != greedy(other, prompt, 6)
    with pytest.raises(LoadError, match="`num_attention_heads` is missing"):
        Llama.load(Checkpoint(), {}, "cpu")


# -------------------------------------------------------------------------------------------------------------------- GGUF


def pair_rows(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """HF row order (two halves of a head) -> GGUF row order (RoPE pairs side by side), written index by index."""
    half = weight.shape[0] // heads // 2
    order = [h * 2 * half + side * half + n for h in range(heads) for n in range(half) for side in range(2)]
    return weight[order]


def write_gguf(path: Path, drop: str = "", extra: str = "", architecture: str = "llama", scaling: str = "") -> None:
    """The golden's weights (RoPE unscaled) as a GGUF file with Q4_1, Q8_0 and F32 tensors."""
    kinds = gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(3)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(112)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(24)
    writer.add_rope_dimension_count(24)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(420)
    writer.add_bos_token_id(400)
    writer.add_eos_token_id(401)
    if scaling:
        writer.add_string("llama.rope.scaling.type", scaling)
    short = {"self_attn.": "attn_", "mlp.": "ffn_", "o_proj": "output", "_proj": "", "input_layernorm": "attn_norm"}
    short |= {"post_attention_layernorm": "ffn_norm", "model.layers": "blk", "model.norm": "output_norm"}
    short |= {"model.embed_tokens": "token_embd"}
    for name, tensor in load_file(GOLDEN / "model.safetensors").items():
        array, stored = tensor.numpy(), name
        for part, replacement in short.items():
            stored = stored.replace(part, replacement)
        if stored == drop:
            continue
        if "attn_q" in stored or "attn_k" in stored:
            array = pair_rows(array, 4 if "attn_q" in stored else 2)
        kind = kinds.F32
        if array.ndim == 2 and array.shape[1] % 32 == 0:
            kind = kinds.Q8_0 if "token_embd" in stored else kinds.Q4_1
        data = array if kind is kinds.F32 else gguf.quants.quantize(array, kind)
        writer.add_tensor(stored, data, raw_dtype=kind)
    if extra:
        writer.add_tensor(extra, np.ones(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_equals_the_folder_it_was_made_from(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    facts, prepared = gguf_load(Checkpoint(path=path, digest="d"))
    assert (facts.num_hidden_layers, facts.vocab_size, facts.eos_token_id, facts.tie_word_embeddings) == (
        3,
        420,
        401,
        True,
    )
    found, kinds = hf_names(facts, prepared), gguf.GGMLQuantizationType
    for name, tensor in load_file(GOLDEN / "model.safetensors").items():
        if tensor.dim() == 1 or tensor.shape[1] % 32:
            assert torch.equal(found[name], tensor), name
        else:
            kind = kinds.Q8_0 if "embed" in name else kinds.Q4_1  # blocks lie within rows, so moving rows changes none
            wanted = gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), kind), kind)
            assert torch.equal(found[name], torch.from_numpy(wanted)), name


def test_the_second_load_reads_the_cache(tmp_path: Path) -> None:
    path, cache = tmp_path / "tiny.gguf", tmp_path / "cache"
    write_gguf(path)
    checkpoint = Checkpoint(path=path, digest="a" * 64, cache_dir=cache)
    facts, first = gguf_load(checkpoint)
    assert [file.suffix for file in cache.iterdir()] == [".safetensors"]  # nothing half-written is left
    path.write_bytes(b"no longer a GGUF file")
    again, second = gguf_load(checkpoint)
    assert again == facts and first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    with pytest.raises(LoadError, match="cannot be read as GGUF"):
        gguf_load(Checkpoint(path=path, digest="b" * 64, cache_dir=cache))


@pytest.mark.parametrize("damage", ["short", "foreign", "misshaped"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, damage: str) -> None:
    path, cache = tmp_path / "tiny.gguf", tmp_path / "cache"
    write_gguf(path)
    checkpoint = Checkpoint(path=path, digest="a" * 64, cache_dir=cache)
    facts, first = gguf_load(checkpoint)
    (file,) = cache.iterdir()
    if damage == "short":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "foreign":
        save_file({"x": torch.ones(2)}, file)
    else:
        save_file({**load_file(file), "norm": torch.ones(3)}, file, metadata={"facts": json.dumps(facts.values())})
    _, second = gguf_load(checkpoint)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_cache_that_cannot_be_written_does_not_stop_the_load(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    (tmp_path / "cache").write_text("a file where the folder should be")
    facts, _ = gguf_load(Checkpoint(path=path, digest="a" * 64, cache_dir=tmp_path / "cache"))
    assert facts.vocab_size == 420


@pytest.mark.parametrize(
    "change, pattern",
    [
        ({"drop": "blk.2.attn_k.weight"}, "`blk.2.attn_k.weight` is missing: rule 4"),
        ({"extra": "blk.0.attn_q.bias"}, "`blk.0.attn_q.bias`.*of tiny.gguf is not used"),
        ({"extra": "rope_freqs.weight"}, "RoPE scaling"),
        ({"scaling": "linear"}, "RoPE scaling"),
        ({"architecture": "qwen2"}, "architecture is `qwen2`"),
    ],
)
def test_a_gguf_file_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, str], pattern: str) -> None:
    write_gguf(tmp_path / "tiny.gguf", **change)
    with pytest.raises(LoadError, match=pattern):
        gguf_load(Checkpoint(path=tmp_path / "tiny.gguf", digest="d"))


def test_every_cut_of_a_gguf_file_is_a_load_error(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    whole = path.read_bytes()
    size = GgufFile(path)._start
    for length in [0, 3, 4, 20, *range(24, size, 97), size + 1000, len(whole) - 2000]:
        path.write_bytes(whole[:length])
        with pytest.raises(LoadError):
            gguf_load(Checkpoint(path=path, digest="d"))


# ------------------------------------------------------------------------------------------------------------ real weights

PROMPTS = [
    "Hi",
    "The capital of France is",
    "Numbers: 1, 2, 3, 4, 5, 6, 7, 8,",
    "Once upon a time, in a village by the sea, there lived an old woman who kept a lamp burning in her window, and",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n\n" * 2
    + "print(",
]


def sizes_of(facts: LlamaConfig) -> dict[str, Any]:
    """Sizes under the names that transformers' configuration takes."""
    return {name: value for name, value in facts.values().items() if name != "rope_scaling"}


@pytest.mark.weights
@pytest.mark.slow
def test_smollm2_greedy_ids_equal_transformers_alone_and_together() -> None:
    """transformers' own maths over our dequantised tensors; that these are right is the next test."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from mstarc_runtime.models.bpe_text import ChatText

    checkpoint = smollm2()
    facts, prepared = gguf_load(checkpoint)
    model, count = Llama(facts, prepared), 6
    prompts = [ChatText.load(checkpoint).encode(text) for text in PROMPTS]
    together = greedy(model, prompts, count)
    assert [greedy(model, [prompt], count)[0] for prompt in prompts] == together
    with torch.device("meta"):
        oracle = LlamaForCausalLM(LlamaConfig(**sizes_of(facts), attn_implementation="eager"))
    oracle.load_state_dict(hf_names(facts, prepared), assign=True)
    oracle.model.rotary_emb = type(oracle.model.rotary_emb)(oracle.config)  # its table is no part of the state dict
    oracle.eval()
    for prompt, produced in zip(prompts, together, strict=True):
        ids = torch.tensor([prompt + produced[:-1]])
        with torch.inference_mode():  # the greedy choice after every prefix, so equal ids mean equal generation
            logits = oracle(input_ids=ids, use_cache=False).logits[0]
        assert logits[len(prompt) - 1 :].argmax(-1).tolist() == produced


@pytest.mark.weights
@pytest.mark.slow
def test_smollm2_tensors_equal_those_of_the_loader_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves dequantisation, names and row order: every tensor of transformers' own GGUF loader, bit for bit."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    # that loader asks for the table of names again for every module
    monkeypatch.setattr(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))
    checkpoint = smollm2()
    facts, prepared = gguf_load(Checkpoint(path=checkpoint.path, digest=checkpoint.digest))
    with torch.device("meta"):
        empty = LlamaForCausalLM(LlamaConfig(**sizes_of(facts)))
    loaded = load_gguf_checkpoint(str(checkpoint.path), return_tensors=True, model_to_load=empty)
    theirs, config = loaded["tensors"], loaded["config"]
    ours = hf_names(facts, prepared)
    assert set(ours) - set(theirs) <= {"lm_head.weight"} and set(theirs) <= set(ours)
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], torch.as_tensor(tensor)), name
    assert torch.equal(ours["lm_head.weight"], ours["model.embed_tokens.weight"])
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
        assert config[name] == getattr(facts, name)
    assert (config["rms_norm_eps"], config["rope_theta"]) == (facts.rms_norm_eps, facts.rope_theta)


@pytest.mark.weights
def test_smollm2_answers_the_question_of_its_page() -> None:
    from mstarc_runtime.models.bpe_text import ChatText

    checkpoint = smollm2()
    chat, model = ChatText.load(checkpoint), loader("ask")(Llama, checkpoint, {})
    (prompt,) = chat.render([("user", "What is the capital of France?")])
    produced = greedy(model, [chat.encode(prompt)], 8)[0]
    assert chat.text(produced).startswith("The capital of France is Paris.")
