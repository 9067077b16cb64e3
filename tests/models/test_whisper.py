"""Whisper components against the stored reference (tests/goldens/whisper); both loaders; the log-mel. Real speech: test_whisper_speech."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.whisper.components import Encoder, Scribe
from mstarc_runtime.models.whisper.config import config_values, read_config
from mstarc_runtime.models.whisper.mel import log_mel
from mstarc_runtime.models.whisper.text import TranscriptText
from tests.models.whisper_ct2 import byte_tokenizer, write_ct2_folder
from tests.models.whisper_dense import Context, DenseRun, Heard, close
from tests.shipped import loader

load = loader("whisper")

GOLDENS = Path(__file__).parents[1] / "goldens"
WHISPER = GOLDENS / "whisper"
CASES: dict[str, Any] = json.loads((WHISPER / "cases.json").read_text())
TENSORS = load_file(WHISPER / "cases.safetensors")
NEVER, NOT_FIRST = CASES["ids"]["suppress_tokens"], CASES["ids"]["begin_suppress_tokens"]
NAMES = [case["name"] for case in CASES["cases"]]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load(Encoder, Checkpoint(path=WHISPER), {}, "cpu")


@pytest.fixture(scope="module")
def scribe() -> Scribe:
    return load(Scribe, Checkpoint(path=WHISPER / "model.safetensors"), {}, "cpu")


# --- log-mel


def test_mel_of_silence_and_of_nothing() -> None:
    for samples in (np.zeros(16000, np.float32), np.zeros(0, np.float32)):
        assert np.array_equal(log_mel(samples, 80, 3000), np.full((80, 3000), -1.5, np.float32))


@pytest.mark.parametrize("count", [1, 159, 200, 47800, 47999, 48000])
def test_mel_skips_only_frames_that_see_nothing(count: int) -> None:
    """Frames past the signal are filled in, not computed: a signal whose padding is spelled out gives the same."""
    samples = np.random.default_rng(count).uniform(-1, 1, count).astype(np.float32)
    spelled_out = np.concatenate([samples, np.zeros(48000 - count, np.float32)])
    assert np.array_equal(log_mel(samples, 80, 300), log_mel(spelled_out, 80, 300))


def test_mel_refuses_to_lose_samples() -> None:
    with pytest.raises(ValueError, match="up to 48000"):
        log_mel(np.zeros(48001, np.float32), 80, 300)


def test_host_side_modules_do_not_import_torch() -> None:
    names = ["audio_input", "whisper.mel", "whisper.config", "whisper.text"]
    lines = [f"import mstarc_runtime.models.{name}" for name in names] + [
        "import sys",
        "sys.exit('torch' in sys.modules)",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=60)


# --- the network on the reference checkpoint


def test_encoder_takes_a_stack(encoder: Encoder) -> None:
    states = encoder.encode(torch.stack([TENSORS["mel.features"], TENSORS["short.features"]]))
    close(states, torch.stack([TENSORS["encoder.states"], TENSORS["short.encoder_states"]]))


def test_encoder_refuses_part_of_a_window(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match=r"\[128, 400\], got \[128, 398\]"):
        encoder.encode(torch.zeros(128, 398))


@pytest.mark.parametrize("name", NAMES)
def test_prefill_logits_equal_the_reference(scribe: Scribe, name: str) -> None:
    prompt, wanted = TENSORS[f"dec.{name}.prompt"], TENSORS[f"dec.{name}.prefill_logits"]
    request = Heard(scribe, TENSORS["encoder.states"])
    close(scribe.net.logits(scribe.net.hidden(request.run(len(prompt)), prompt)), wanted)
    close(scribe.read(Heard(scribe, TENSORS["encoder.states"]).run(len(prompt)), prompt), wanted[-1:])


@pytest.mark.parametrize("name", NAMES)
def test_greedy_ids_equal_the_reference(scribe: Scribe, name: str) -> None:
    prompt = TENSORS[f"dec.{name}.prompt"].tolist()
    ids, raw = Heard(scribe, TENSORS["encoder.states"]).greedy(prompt, NEVER, NOT_FIRST, 20)
    assert ids == TENSORS[f"dec.{name}.generated"].tolist()
    close(raw, TENSORS[f"dec.{name}.generated_logits"])
    ids, _ = Heard(scribe, TENSORS["encoder.states"]).greedy(prompt, [], [], 20)
    assert ids == TENSORS[f"dec.{name}.generated_without_suppression"].tolist()


def test_short_signal_from_samples_to_ids(encoder: Encoder, scribe: Scribe) -> None:
    mel = log_mel(TENSORS["mel.waveform"].numpy()[:16000], 128, 400)
    facts = read_config(Checkpoint(path=WHISPER))
    request = Heard(scribe, encoder.encode(torch.from_numpy(mel)))
    ids, _ = request.greedy(facts.prompt_ids, facts.suppress_tokens, facts.begin_suppress_tokens, 20)
    assert ids == TENSORS["short.generated"].tolist()


def test_a_packed_batch_equals_its_requests_alone(encoder: Encoder, scribe: Scribe) -> None:
    """Two requests with other audio and prompts of other lengths: one listen, one read, one step for both."""
    states = [TENSORS["encoder.states"], TENSORS["short.encoder_states"][:150]]
    prompts, tokens = [torch.tensor([257, 258, 269, 273]), torch.tensor([257, 273])], torch.tensor([40, 60])
    alone = [Heard(scribe, s) for s in states]
    reads = torch.cat([scribe.read(h.run(len(p)), p) for h, p in zip(alone, prompts, strict=True)])
    steps = torch.cat([scribe.step(h.run(1), t) for h, t in zip(alone, torch.split(tokens, 1), strict=True)])
    sounds, saids = [Context(), Context()], [Context(), Context()]
    scribe.listen(DenseRun([200, 150], sounds), torch.cat(states))
    close(scribe.read(DenseRun([4, 2], saids, sounds), torch.cat(prompts)), reads, 1e-5)
    close(scribe.step(DenseRun([1, 1], saids, sounds), tokens), steps, 1e-5)


# --- facts


def test_facts_of_the_reference_checkpoint() -> None:
    values = config_values(Checkpoint(path=WHISPER), {})
    assert (values["d_model"], values["vocab_size"], values["n_mels"], values["n_frames"]) == (48, 320, 128, 400)
    assert values["eos_token_id"] == CASES["ids"]["eot"]
    assert values["suppress_tokens"] == NEVER and values["begin_suppress_tokens"] == NOT_FIRST
    assert values["prompt_ids"] == TENSORS["dec.en_transcribe.prompt"].tolist()
    german = config_values(Checkpoint(path=WHISPER), {"language": "de", "task": "translate"})
    assert german["prompt_ids"] == TENSORS["dec.de_translate.prompt"].tolist()
    with pytest.raises(LoadError, match=r"no token `<\|xx\|>`"):
        config_values(Checkpoint(path=WHISPER), {"language": "xx"})


@pytest.mark.parametrize("component", [Encoder, Scribe])
def test_a_binding_with_another_size_is_refused(component: type[Encoder] | type[Scribe]) -> None:
    load(component, Checkpoint(path=WHISPER), {"d_model": 48, "vocab_size": 320, "suppress_tokens": [5]}, "cpu")
    with pytest.raises(LoadError, match="`vocab_size` is 51864 in the binding, 320 in the Whisper checkpoint"):
        load(component, Checkpoint(path=WHISPER), {"d_model": 48, "vocab_size": 51864}, "cpu")


# --- loading: HF folders


def hf_folder(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> Checkpoint:
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_text((WHISPER / name).read_text())
    tensors = load_file(WHISPER / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return Checkpoint(path=folder)


ENCODER_BIAS = "model.encoder.conv1.bias"
EMBEDDING = "model.decoder.embed_tokens.weight"
BAD_TENSORS: list[tuple[type[Encoder] | type[Scribe], Callable[[dict[str, Tensor]], object], str]] = [
    (
        Encoder,
        lambda t: t.pop(ENCODER_BIAS),
        r"`conv1\.bias` \[48\] is missing: it would be `model\.encoder\.conv1\.bias`, which model\.safetensors does not have",
    ),
    (
        Encoder,
        lambda t: t.update({ENCODER_BIAS: torch.zeros(47)}),
        r"`conv1\.bias` is \[47\], not \[48\]: it is `model\.encoder\.conv1\.bias` \[47\] of model\.safetensors",
    ),
    (Encoder, lambda t: t.update({ENCODER_BIAS: torch.zeros(48, dtype=torch.int8)}), r"conv1\.bias` is int8"),
    (
        Encoder,
        lambda t: t.update({"model.encoder.layers.0.self_attn.k_proj.bias": torch.zeros(48)}),
        r"k_proj\.bias` \[48\] of model\.safetensors is not used",
    ),
    (
        Encoder,
        lambda t: t.update({"lora.weight": torch.zeros(1)}),
        r"`lora\.weight` \[1\] of model\.safetensors is not used",
    ),
    (
        Scribe,
        lambda t: t.update({"model.decoder.layers.2.fc1.bias": torch.zeros(80)}),
        r"`model\.decoder\.layers\.2\.fc1\.bias` \[80\] of model\.safetensors is not used",
    ),
    (
        Scribe,
        lambda t: t.pop(EMBEDDING),
        r"rule 2 .* fits no tensor: `model\.decoder\.embed_tokens\.weight` is not in model\.safetensors",
    ),
    (
        Scribe,
        lambda t: t.update({"proj_out.weight": torch.zeros(320, 48)}),
        r"`proj_out.weight` of model\.safetensors differ; they are tied",
    ),
]


@pytest.mark.parametrize(("component", "change", "message"), BAD_TENSORS, ids=[case[2] for case in BAD_TENSORS])
def test_bad_tensors_are_named(
    tmp_path: Path, component: type[Encoder] | type[Scribe], change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load(component, hf_folder(tmp_path, change), {}, "cpu")


def test_half_precision_and_a_repeated_head_load(tmp_path: Path, scribe: Scribe) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors.update({name: tensor.half() for name, tensor in tensors.items()})
        tensors["proj_out.weight"] = tensors[EMBEDDING].clone()

    loaded = load(Scribe, hf_folder(tmp_path, change), {}, "cpu")
    assert all(p.dtype == torch.float32 and not p.requires_grad for p in loaded.net.parameters())
    close(loaded.net.embed_tokens.weight, scribe.net.embed_tokens.weight, 1e-3)


def test_an_index_of_shards_loads(tmp_path: Path, encoder: Encoder) -> None:
    checkpoint = hf_folder(tmp_path, lambda tensors: None)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    where = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
    for part in set(where.values()):
        save_file({name: tensors[name] for name in tensors if where[name] == part}, tmp_path / part)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    close(load(Encoder, checkpoint, {}, "cpu").encode(TENSORS["mel.features"]), TENSORS["encoder.states"])


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="needs a checkpoint"):
        load(Encoder, Checkpoint(), {}, "cpu")
    with pytest.raises(LoadError, match="gone does not exist"):
        load(Encoder, Checkpoint(path=tmp_path / "gone"), {}, "cpu")
    with pytest.raises(LoadError, match=r"config.json does not exist"):
        load(Encoder, Checkpoint(path=tmp_path), {}, "cpu")
    checkpoint = hf_folder(tmp_path, lambda tensors: None)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(LoadError, match=r"model.safetensors cannot be read"):
        load(Encoder, checkpoint, {}, "cpu")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(LoadError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        load(Encoder, checkpoint, {}, "cpu")
    (tmp_path / "config.json").write_text('{"model_type": "whisper", "vocab_size": "many"}')
    with pytest.raises(LoadError, match="`vocab_size` of the checkpoint is 'many'"):
        load(Encoder, checkpoint, {}, "cpu")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LoadError, match=r"config.json cannot be read"):
        load(Encoder, checkpoint, {}, "cpu")


# --- loading: CTranslate2 folders, written here from the reference tensors


def test_ct2_folder_equals_the_hf_folder(tmp_path: Path, scribe: Scribe, encoder: Encoder) -> None:
    checkpoint = Checkpoint(path=write_ct2_folder(tmp_path, WHISPER, np.float32) / "model.bin")
    mine = load(Encoder, checkpoint, {}, "cpu"), load(Scribe, checkpoint, {}, "cpu")
    for loaded, wanted in [
        (mine[0].net.state_dict(), encoder.net.state_dict()),
        (mine[1].net.state_dict(), scribe.net.state_dict()),
    ]:
        assert loaded.keys() == wanted.keys()
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in loaded.items())
    assert mine[0].config.encoder_heads == mine[1].config.decoder_heads == 4
    assert (mine[0].config.encoder_ffn, mine[1].config.decoder_ffn) == (96, 80)
    assert mine[1].config.suppress_tokens == tuple(NEVER) and mine[1].config.begin_suppress_tokens == tuple(NOT_FIRST)


def test_ct2_english_only_prompt(tmp_path: Path) -> None:
    checkpoint = Checkpoint(path=write_ct2_folder(tmp_path, WHISPER, np.float16))
    facts = read_config(checkpoint)  # 320 entries: an English-only vocabulary
    assert facts.prompt_ids == (257, 273) and facts.eos_token_id == 256
    with pytest.raises(LoadError, match="hears English only; language `de`"):
        read_config(checkpoint, language="de")


def with_k_bias(variables: dict[str, Any]) -> None:
    bias = variables["decoder/layer_1/attention/linear_1/bias"].copy()
    bias[3] = 1
    variables["decoder/layer_1/attention/linear_1/bias"] = bias


BAD_VARIABLES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (
        lambda v: v.pop("decoder/layer_0/ffn/linear_1/bias"),
        r"`model\.decoder\.layers\.0\.fc2\.bias`, which model\.bin does not have",
    ),
    (lambda v: v.pop("decoder/num_heads"), "`decoder/num_heads` is missing"),
    (
        lambda v: v.update({"decoder/layer_0/ffn/linear_0/weight_scale": np.ones(80, np.float32)}),
        "weight_scale` is unexpected|unexpected variable",
    ),
    (lambda v: v.update({"decoder/layer_9/ffn/linear_1/bias": np.ones(48, np.float32)}), "is missing"),
    (lambda v: v.update({"vision/conv/weight": np.ones(1, np.float32)}), "unexpected variable `vision/conv/weight`"),
    (lambda v: v.update({"decoder/layer_0/ffn/linear_1/weight": np.ones((48, 80), np.int8)}), "is int8"),
    (
        lambda v: v.update({"decoder/layer_0/ffn/linear_1/bias": np.ones(47, np.float32)}),
        r"`layers\.0\.fc2\.bias` is \[47\], not \[48\]",
    ),
    (lambda v: v.update({"decoder/layer_0/self_attention/linear_0/bias": np.ones(143, np.float32)}), "143 rows"),
    (lambda v: v.update({"decoder/activation": np.int8(0)}), "`decoder/activation` is 0"),
    (with_k_bias, "bias for the keys"),
]


@pytest.mark.parametrize(("change", "message"), BAD_VARIABLES, ids=[case[1] for case in BAD_VARIABLES])
def test_bad_ct2_variables_are_named(tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        load(Scribe, Checkpoint(path=write_ct2_folder(tmp_path, WHISPER, np.float32, change)), {}, "cpu")


def test_ct2_foreign_files(tmp_path: Path) -> None:
    folder = write_ct2_folder(tmp_path, WHISPER, np.float16)
    whole = (folder / "model.bin").read_bytes()
    for damaged, message in [
        (b"", "cut short"),
        (whole[:-1], "cut short"),
        (whole[: len(whole) // 2], "cut short"),
        (whole + b"\0", "1 bytes after its end"),
        (b"\5" + whole[1:], "it starts with 5"),
        (whole.replace(b"WhisperSpec", b"WhimperSpec"), "is a WhimperSpec"),
        (whole.replace(b"decoder/projection/weight", b"decoder/projection/wright"), "not tied"),
    ]:
        (folder / "model.bin").write_bytes(damaged)
        with pytest.raises(LoadError, match=message):
            load(Scribe, Checkpoint(path=folder), {}, "cpu")


# --- text


def test_transcript_text_drops_special_ids_and_mends_bytes(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    text = TranscriptText(Checkpoint(path=tmp_path))
    ids = byte_tokenizer().encode("ĠhÃ©").ids  # " hé", byte by byte
    assert text.transcript_text([257, 258, *ids, 274, 256]) == "hé"
    assert text.transcript_text([*ids[:-1]]) == "h\ufffd"
    assert text.transcript_text([]) == ""
    with pytest.raises(LoadError, match=r"tokenizer.json does not exist"):
        TranscriptText(Checkpoint(path=WHISPER))
