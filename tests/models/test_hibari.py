"""The voice: ONNX reader, layers and signal processing against direct formulas; with the weights, against onnxruntime's outputs."""

from __future__ import annotations

import math
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest, LoadError
from mstarc_runtime.models.hibari import Voice, layers, phonemes
from mstarc_runtime.models.hibari import spectrum as dsp
from mstarc_runtime.models.hibari.g2p import LONGEST, Phonemizer, package_assets
from mstarc_runtime.models.hibari.onnxfile import read_weights

GOLDENS = Path(__file__).parents[1] / "goldens" / "hibari"
PHRASES = range(5)
needs_weights = pytest.mark.weights


def speak_text(voice: Voice, text: str) -> np.ndarray:
    """A phrase spoken at once: what a streamed phrase must equal."""
    ids = voice.g2p(text)
    return voice.istft(voice.acoustic(ids, *voice.prosody(ids))).numpy()


@pytest.fixture(scope="module")
def assets() -> Path:
    try:
        return package_assets()
    except LoadError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def voice(assets: Path) -> Voice:
    torch.set_num_threads(1)
    return Voice.load(Checkpoint(assets), {}, "cpu")


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDENS / "phrases.npz") as data:
        return dict(data)


def reference(golden: dict[str, np.ndarray], phrase: int) -> tuple[torch.Tensor, ...]:
    """ids, durations, f0, energy"""
    ids, durations = (torch.from_numpy(golden[f"{k}{phrase}"].astype(np.int64)) for k in ("ids", "durations"))
    return ids, durations, torch.from_numpy(golden[f"f0{phrase}"]), torch.from_numpy(golden[f"energy{phrase}"])


# ---------------------------------------------------------------------------------------------------------------- ONNX file


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def part(field: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(field << 3) + varint(value)
    return varint(field << 3 | 2) + varint(len(value)) + value


def tensor(
    name: str, dims: list[int], code: int, raw: bytes | None = None, typed: tuple[int, bytes] | None = None
) -> bytes:
    body = part(1, b"".join(map(varint, dims))) + part(2, code) + part(8, name.encode())
    if raw is not None:
        body += part(9, raw)
    if typed is not None:
        body += part(*typed)
    return part(5, body)


def node(op: str, inputs: list[str], outputs: list[str]) -> bytes:
    return part(
        1,
        b"".join(part(1, i.encode()) for i in inputs)
        + b"".join(part(2, o.encode()) for o in outputs)
        + part(4, op.encode()),
    )


def int8_model(zero: int = 0, bias: str = "net.fc.bias") -> bytes:
    graph = (
        tensor(bias, [2], 1, struct.pack("<2f", 1.5, -2.0))
        + tensor("/fc/T_quantized", [3, 2], 3, struct.pack("6b", -127, 2, 3, 4, 5, 127))
        + tensor("/fc/T_scale", [], 1, typed=(4, struct.pack("<f", 0.25)))
        + tensor("/fc/T_zero_point", [], 3, typed=(5, varint(zero)))
        + node("MatMulInteger", ["x_quantized", "/fc/T_quantized", "x_zp", "/fc/T_zero_point"], ["a"])
        + node("Cast", ["a"], ["b"])
        + node("Mul", ["b", "scales"], ["c"])
        + node("Add", [bias, "c"], ["d"])
    )
    return part(1, 8) + part(7, graph)


def test_reader_names_an_int8_matrix_after_the_bias_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(int8_model())
    weights = read_weights(path)
    assert set(weights) == {"net.fc.bias", "net.fc.weight", "net.fc.step"}
    assert weights["net.fc.weight"].tolist() == [[-127, 2], [3, 4], [5, 127]]
    assert weights["net.fc.bias"].tolist() == [1.5, -2.0] and weights["net.fc.step"] == np.float32(0.25)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (int8_model()[:-30], "early"),
        (b"", "holds no tensor"),
        (b"\xff" * 40, "readable"),
        (b"not a model at all, only text", "readable"),
        (int8_model(zero=3), "`/fc/T_quantized` is not quantised by one symmetric step"),
        (int8_model(bias="offset"), "no bias tells what the matrix `/fc/T_quantized` is"),
        (part(7, tensor("short", [4], 1, b"\0" * 8)), "tensor `short` has 2 elements"),
        (part(7, tensor("odd", [1], 10, b"\0\0")), "tensor `odd` has element type 10"),
    ],
)
def test_reader_refuses_what_it_cannot_read(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(LoadError, match=r"m\.onnx") as error:
        read_weights(path)
    assert said in str(error.value)


def test_fill_names_the_tensor_that_does_not_fit() -> None:
    good = {"n.weight": np.zeros((2, 3), np.float32), "n.bias": np.arange(3, dtype=np.float32), "other": np.zeros(1)}
    dense = layers.Dense(2, 3)
    layers.fill(dense, good, "n.", Path("m.onnx"))
    assert dense.bias.tolist() == [0.0, 1.0, 2.0]
    for change, said in [
        ({"n.bias": None}, "`n.bias` is missing"),
        ({"n.weight": np.zeros((3, 2), np.float32)}, r"`n.weight` has shape \[3, 2\], expected \[2, 3\]"),
        ({"n.extra": np.zeros(1)}, "`n.extra` is not a part"),
    ]:
        bad = {name: array for name, array in (good | change).items() if array is not None}
        with pytest.raises(LoadError, match=said):
            layers.fill(layers.Dense(2, 3), bad, "n.", Path("m.onnx"))


# ------------------------------------------------------------------------------------------------------------------- layers


def test_int8_dense_is_integer_arithmetic() -> None:
    rng = np.random.default_rng(3)
    dense = layers.Int8Dense(384, 50)
    weight = rng.integers(-127, 128, (384, 50))
    dense.weight.copy_(torch.from_numpy(weight).float())
    dense.bias.copy_(torch.from_numpy(rng.standard_normal(50)))
    dense.step.fill_(0.01)
    x = (rng.standard_normal((17, 384)) + 0.7).astype(np.float32)
    step = np.float32((x.max() - x.min()) / np.float32(255))
    zero = int(np.rint(-x.min() / step))
    integers = np.clip(np.rint(x / step).astype(np.int64) + zero, 0, 255) - zero
    expected = (integers @ weight).astype(np.float32) * (step * np.float32(0.01)) + dense.bias.numpy()
    assert np.array_equal(dense(torch.from_numpy(x)).numpy(), expected)
    assert torch.equal(dense(torch.zeros(2, 384)), dense.bias.expand(2, 50)), "a silent input has no range"


def test_int8_dense_takes_zero_into_its_range() -> None:
    dense = layers.Int8Dense(1, 1)
    dense.weight.fill_(1.0)
    dense.bias.zero_()
    dense.step.fill_(1.0)
    assert dense(torch.tensor([[4.0], [5.0]])).flatten().tolist() == pytest.approx([4.0, 5.0], abs=5 / 255 / 2)


def test_depthwise_is_a_dilated_convolution() -> None:
    torch.manual_seed(0)
    for width, dilation, length in [(5, 1, 9), (7, 4, 30), (7, 8, 5)]:
        mine = layers.Depthwise(6, width, dilation)
        conv = torch.nn.Conv1d(6, 6, width, padding=dilation * (width // 2), dilation=dilation, groups=6)
        mine.load_state_dict(conv.state_dict())
        x = torch.randn(length, 6)
        torch.testing.assert_close(mine(x), conv(x.t()[None])[0].t(), atol=1e-6, rtol=1e-5)


# -------------------------------------------------------------------------------------------------------- signal processing


def formula_parts() -> tuple[torch.Tensor, torch.Tensor]:
    """Parts [24, 5, 601] and f0 [24] behind `synthesis.npz`: voiced, unvoiced and negative pitch, values above the cap."""
    k, t = np.arange(601.0)[:, None], np.arange(24.0)[None]
    parts = np.stack(
        [
            -3 + 4 * np.cos(k / 90 + t / 5),
            np.sin(k / 40 - t / 3),
            -5 + 5 * np.sin(k / 70 + t / 4),
            -4 + 3 * np.cos(k / 30 - t / 6),
            3 * np.sin(k * t / 200),
        ]
    ).astype(np.float32)
    parts[0, :3] = 8.5
    f0 = (150 + 160 * np.sin(np.arange(24) / 4)).astype(np.float32)
    return torch.from_numpy(parts.transpose(2, 0, 1).copy()), torch.from_numpy(f0)


@pytest.mark.parametrize("block", [5, 100])
def test_synthesis_equals_the_reference(block: int) -> None:
    parts, f0 = formula_parts()
    with np.load(GOLDENS / "synthesis.npz") as golden:
        pulses, pcm = golden["pulses"], golden["pcm"]
    np.testing.assert_allclose(dsp.pulses(f0).numpy(), pulses, atol=5e-3)  # peaks of 132
    spectrum = dsp.compose(parts, dsp.pulse_frames(f0), dsp.noise(0, 0, 24))
    np.testing.assert_allclose(dsp.inverse(spectrum, block).numpy(), pcm, atol=2e-4)  # peaks of 2.8


def test_pulses_are_the_sum_of_their_harmonics() -> None:
    f0 = torch.full((8,), 220.0)
    t = 2 * math.pi * 220.0 / dsp.RATE * torch.arange(1, 8 * dsp.HOP + 1, dtype=torch.float64)
    expected = sum(torch.cos(h * t) for h in range(1, 51))  # 50 * 220 Hz = 11 kHz
    torch.testing.assert_close(dsp.pulses(f0).double(), expected, atol=2e-2, rtol=0)
    assert dsp.pulses(torch.tensor([10.0, -3.0, 39.0])).abs().max() == 0


@pytest.mark.parametrize(("frames", "block"), [(1, 4), (6, 4), (37, 8), (37, 100)])
def test_inverse_equals_torch_istft(frames: int, block: int) -> None:
    torch.manual_seed(1)
    spectrum = torch.randn(frames, dsp.BINS, dtype=torch.complex64)
    window = torch.hann_window(dsp.N_FFT)
    expected = torch.istft(spectrum.t(), dsp.N_FFT, dsp.HOP, window=window, center=True, length=frames * dsp.HOP)
    torch.testing.assert_close(dsp.inverse(spectrum, block), expected, atol=2e-6, rtol=1e-4)


def test_noise_depends_on_seed_and_frame_alone() -> None:
    whole = dsp.noise(7, 0, 200)
    assert torch.equal(dsp.noise(7, 150, 9), whole[150:159])
    assert not torch.equal(dsp.noise(8, 0, 200), whole)
    samples = torch.view_as_real(whole)
    assert samples.isfinite().all()
    assert samples.var().item() == pytest.approx(1.0, abs=0.02)
    assert (samples[..., 0] * samples[..., 1]).mean().item() == pytest.approx(0.0, abs=0.02)
    assert (whole[1:] * whole[:-1].conj()).mean().abs().item() < 0.02, "neighbouring frames are independent"


# ------------------------------------------------------------------------------------------------------------ text, weights


@needs_weights
@pytest.mark.parametrize("phrase", PHRASES)
def test_phonemes_equal_the_package(assets: Path, golden: dict[str, np.ndarray], phrase: int, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # an import of it fails
    assert Phonemizer(assets)(str(golden[f"text{phrase}"])) == golden[f"ids{phrase}"].tolist()


@needs_weights
@pytest.mark.parametrize(
    "text", ["", "  \n", "\U0001f600", "你好，世界", "...", "-" * 4000, "||", "\u200b\ufeff", "[](//)"]
)
def test_nothing_to_say_is_no_error_and_no_samples(voice: Voice, text: str) -> None:
    assert voice.g2p(text).shape == (0,)
    assert speak_text(voice, text).shape == (0,)


@needs_weights
@pytest.mark.parametrize(
    "text",
    [
        "a" * 5000,
        "a1" * 300,
        "1" * 300,
        "9" * 40 + "th",
        "$" + "9" * 60,
        "1,1" * 40,
        "x\ud800\0y",
        "٣٤ ½ ² ⅷ x",
        "1/0 12:34:56:78 99/99/9999",
    ],
)
def test_odd_text_gives_ids_in_bounded_utterances(assets: Path, text: str) -> None:
    ids = phonemes(text)
    assert ids and ids[0] == ids[-1] == 0 and all(0 <= i < 178 for i in ids)
    lengths = [len(run) for run in "".join("|" if i == 0 else "x" for i in ids).split("|") if run]
    assert max(lengths) <= LONGEST and ids.count(0) == 2 * len(lengths)


@needs_weights
def test_a_word_that_the_package_fails_on_costs_only_itself(assets: Path) -> None:
    def spell(text: str) -> str:
        if "bad" in text:
            raise IndexError(text)
        return "".join("h" if c.isalpha() else c for c in text)

    reader = Phonemizer(assets)
    table = reader("hh. hh")
    reader._spell = spell
    whole, without = reader("one bad two"), reader("one two")
    assert table and without and whole == without


# ----------------------------------------------------------------------------------------------------------- nets, weights


@needs_weights
@pytest.mark.parametrize("phrase", PHRASES)
def test_prosody_equals_onnxruntime(voice: Voice, golden: dict[str, np.ndarray], phrase: int) -> None:
    """Every duration is equal, unless the reference itself stood within 0.05 of a rounding border; there it may be off by one."""
    ids, expected, f0, energy = reference(golden, phrase)
    durations, my_f0, my_energy = voice.prosody(ids)
    steps = golden[f"steps{phrase}"]
    tie = torch.from_numpy(np.abs(steps - np.floor(steps) - 0.5) < 0.05)
    assert tie.sum() <= 0.15 * len(ids) and torch.equal(durations[~tie], expected[~tie])
    assert (durations - expected).abs().max() <= 1
    assert my_f0.shape == my_energy.shape == (2 * int(durations.sum()),)
    if torch.equal(durations, expected):  # otherwise the frames are not the same ones
        assert (my_f0 - f0).abs().max() < 6.0 and (my_f0 - f0).abs().mean() < 0.8
        assert (my_energy - energy).abs().max() < 0.2


@needs_weights
def test_most_phrases_have_all_durations_equal(voice: Voice, golden: dict[str, np.ndarray]) -> None:
    equal = [torch.equal(voice.prosody(reference(golden, i)[0])[0], reference(golden, i)[1]) for i in PHRASES]
    assert sum(equal) >= len(equal) - 1


@needs_weights
@pytest.mark.parametrize("phrase", PHRASES)
def test_acoustic_equals_onnxruntime(voice: Voice, golden: dict[str, np.ndarray], phrase: int) -> None:
    """The five parts, from the reference's own prosody. What remains is a few flipped 8-bit roundings."""
    with torch.no_grad():
        parts = torch.cat(list(voice._acoustic(*reference(golden, phrase), 64)))[::32].numpy()
    expected = golden[f"parts{phrase}"].astype(np.float32)
    assert parts.shape == expected.shape
    for k in range(5):
        error = np.abs(parts[:, k] - expected[:, k])
        assert error.max() < 0.7 and error.mean() < 0.08
        assert np.corrcoef(parts[:, k].ravel(), expected[:, k].ravel())[0, 1] > 0.9995


@needs_weights
@pytest.mark.parametrize("phrase", [0, 1, 4])
def test_samples_equal_onnxruntime(voice: Voice, golden: dict[str, np.ndarray], phrase: int) -> None:
    """From the reference's prosody; a pitch that is 0.1 Hz off drifts out of phase, which samples cannot be compared through."""
    pcm, expected = voice.istft(voice.acoustic(*reference(golden, phrase))).numpy(), golden[f"pcm{phrase}"]
    assert pcm.shape == expected.shape
    assert np.corrcoef(pcm, expected)[0, 1] > 0.999
    assert np.abs(pcm - expected).max() < 0.03  # peaks of 0.26 to 0.35


@needs_weights
def test_the_same_phrase_gives_the_same_samples(voice: Voice, assets: Path) -> None:
    torch.set_num_threads(1)
    text = "Is it so, or not?"
    first = speak_text(voice, text)
    torch.manual_seed(99)
    speak_text(voice, "Something else.")
    other = Voice.load(Checkpoint(assets / "hibari.onnx"), {}, "cpu")
    assert np.array_equal(speak_text(voice, text), first) and np.array_equal(speak_text(other, text), first)
    noisy = Voice.load(Checkpoint(assets), {"noise_seed": 1}, "cpu")
    assert not np.array_equal(speak_text(noisy, text), first)
    assert 0.05 < np.abs(first).max() < 1.0


@needs_weights
def test_lengths_are_what_the_frames_say(voice: Voice) -> None:
    ids = voice.g2p("Photosynthesis turns light into sugar.")
    durations, f0, energy = voice.prosody(ids)
    frames = 2 * int(durations.sum())
    spectrum = voice.acoustic(ids, durations, f0, energy)
    assert durations.min() >= 1 and durations.dtype == torch.int64
    assert f0.shape == energy.shape == (frames,) and spectrum.shape == (frames, 601, 2)
    assert voice.istft(spectrum).shape == (300 * frames,)


@needs_weights
def test_utterances_of_a_long_phrase_do_not_see_each_other(voice: Voice) -> None:
    first, second = voice.g2p("It rains today."), voice.g2p("The sun is back.")
    both = torch.cat([first, second])
    alone = [voice.prosody(first), voice.prosody(second)]
    together = voice.prosody(both)
    for k in range(3):
        assert torch.equal(together[k], torch.cat([alone[0][k], alone[1][k]]))
    spectrum = voice.acoustic(both, *together)
    assert torch.equal(spectrum[: alone[0][1].shape[0]], voice.acoustic(first, *alone[0]))


@needs_weights
def test_long_text_is_spoken_whole(voice: Voice) -> None:
    sentence = "the river runs slowly past the old stone bridge "
    ids = voice.g2p(sentence * 12)
    assert ids.shape[0] > LONGEST and voice.g2p(sentence).shape[0] * 11 < ids.shape[0]
    durations, _, _ = voice.prosody(ids)
    assert int(durations.min()) >= 1


@needs_weights
def test_speed_divides_the_durations(assets: Path, golden: dict[str, np.ndarray]) -> None:
    ids, _, _, _ = reference(golden, 3)
    durations = Voice.load(Checkpoint(assets), {"speed": 2.0}, "cpu").prosody(ids)[0].numpy()
    steps = golden["steps3"] / 2.0
    assert (np.rint(steps) == 0).sum() > 0 and durations.min() == 1, "no phoneme vanishes"
    clear = np.abs(steps - np.floor(steps) - 0.5) > 0.05
    assert np.array_equal(durations[clear], np.maximum(np.rint(steps), 1)[clear])


@needs_weights
def test_noise_of_the_spectrum_is_that_of_its_frames(assets: Path, golden: dict[str, np.ndarray]) -> None:
    """Two seeds differ by exp(ln) (Z - Z') in every frame, also across the blocks that the spectrum is made in."""
    arguments = reference(golden, 1)
    voices = [Voice.load(Checkpoint(assets), {"noise_seed": seed}, "cpu") for seed in (0, 1)]
    spectra = [torch.view_as_complex(voice.acoustic(*arguments)) for voice in voices]
    frames = spectra[0].shape[0]
    with torch.no_grad():
        log_noise = torch.cat(list(voices[0]._acoustic(*arguments, 1000)))[:, 2]
    expected = log_noise.exp() * (dsp.noise(0, 0, frames) - dsp.noise(1, 0, frames))
    torch.testing.assert_close(spectra[0] - spectra[1], expected, atol=1e-4, rtol=1e-3)


@needs_weights
def test_pads_and_short_ids_say_nothing(voice: Voice) -> None:
    for ids in ([], [0], [0, 0], [0, 0, 0], [0, 50]):
        tensor_ids = torch.tensor(ids, dtype=torch.int64)
        prosody = voice.prosody(tensor_ids)
        assert prosody[0].shape == tensor_ids.shape and prosody[1].shape == (0,)
        assert voice.istft(voice.acoustic(tensor_ids, *prosody)).shape == (0,)


@needs_weights
def test_bad_arguments_name_their_field(voice: Voice) -> None:
    ids = voice.g2p("Yes.")
    durations, f0, energy = voice.prosody(ids)
    for call, field in [
        (lambda: voice.prosody(torch.tensor([0, 178, 0])), "ids"),
        (lambda: voice.prosody(ids.float()), "ids"),
        (lambda: voice.prosody(ids[None]), "ids"),
        (lambda: voice.acoustic(ids, durations[1:], f0, energy), "durations"),
        (lambda: voice.acoustic(ids, durations * 0, f0[:0], energy[:0]), "durations"),
        (lambda: voice.acoustic(ids, durations, f0[:-1], energy), "durations"),
        (lambda: voice.istft(torch.zeros(3, 600, 2)), "spectrum"),
    ]:
        with pytest.raises(BadRequest) as error:
            call()
        assert error.value.field == field


@needs_weights
def test_load_errors_name_what_is_wrong(assets: Path, tmp_path: Path) -> None:
    broken = tmp_path / "hibari.onnx"
    broken.write_bytes((assets / "hibari.onnx").read_bytes().replace(b"pn.pro_out.bias", b"pn.pro_out.bios"))
    for checkpoint, config, said in [
        (Checkpoint(None), {}, "no checkpoint"),
        (Checkpoint(tmp_path / "nowhere"), {}, "nowhere"),
        (Checkpoint(tmp_path), {}, "`pn.pro_out.bias` is missing"),
        (Checkpoint(assets), {"speed": 9}, "`speed` is 9"),
        (Checkpoint(assets), {"noise_seed": -1}, "`noise_seed` is -1"),
    ]:
        with pytest.raises(LoadError, match=said):
            Voice.load(checkpoint, config, "cpu")
