"""The voice as a stateless component: phoneme ids -> prosody -> spectrum -> 24 kHz samples, American English "heart".

    g2p      text                                              -> ids i64 [P]
    prosody  ids i64 [P]                                       -> durations i64 [P], f0 f32 [F], energy f32 [F]
    acoustic ids i64 [P], durations i64 [P], f0, energy f32 [F] -> spectrum f32 [F, 601, 2]
    istft    spectrum f32 [F, 601, 2]                          -> pcm f32 [N]

A frame is 12.5 ms. F = 2 * sum(durations) and N = 300 * F, both exactly. Two pads in a row part utterances, which the nets never see
together; only the overlap of the inverse transform joins them. Fewer than three ids say nothing: no frames, no samples.
Same ids, same config: same samples. The noise is counter based (`spectrum.noise`), keyed by config `noise_seed` and the frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest, LoadError
from mstarc_runtime.models.hibari import spectrum as dsp
from mstarc_runtime.models.hibari.g2p import PAD, phonemizer
from mstarc_runtime.models.hibari.layers import fill
from mstarc_runtime.models.hibari.nets import FRAMES_PER_STEP, VOCAB, AcousticNet, ProsodyNet
from mstarc_runtime.models.hibari.onnxfile import read_weights

WEIGHTS = "hibari.onnx"
_BLOCK = 64  # frames whose spectrum is worked out at once
_SHORTEST = 3  # ids of an utterance


class Voice:
    """Ops `prosody`, `acoustic` and `istft`; `g2p` for host code. Config: `speed` 0.5..2 (1), `noise_seed` (0)."""

    SAMPLE_RATE = dsp.RATE
    HOP = dsp.HOP

    def __init__(
        self,
        prosody: ProsodyNet,
        acoustic: AcousticNet,
        folder: Path,
        device: torch.device,
        speed: float,
        noise_seed: int,
    ) -> None:
        self._prosody, self._acoustic = prosody, acoustic
        self._folder, self._device = folder, device
        self._speed, self._seed = speed, noise_seed

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Self:
        """`checkpoint.path` is the assets folder of hibari-tts, or a file of its kind inside one. Takes about 0.1 s.

        Raises `LoadError` naming the config key, the file or the tensor.
        """
        if checkpoint.path is None:
            raise LoadError("the voice has no checkpoint: bind the node to the assets folder of hibari-tts")
        path = checkpoint.path / WEIGHTS if checkpoint.path.is_dir() else checkpoint.path
        speed = _number(config, "speed", 1.0, 0.5, 2.0)
        seed = _number(config, "noise_seed", 0, 0, 2**63 - 1)
        weights = read_weights(path)
        with torch.no_grad():
            prosody, acoustic = ProsodyNet(), AcousticNet()
            fill(prosody, weights, "pn.", path)
            fill(acoustic, weights, "m.", path)
            return cls(prosody.to(device), acoustic.to(device), path.parent, torch.device(device), speed, int(seed))

    def g2p(self, text: str) -> Tensor:
        """Phoneme ids i64 [P] of a phrase; empty if there is nothing to say. The first call loads the lexicons (0.7 s)."""
        return torch.tensor(phonemizer(self._folder)(text), dtype=torch.int64, device=self._device)

    @torch.no_grad()
    def prosody(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ids i64 [P] -> durations i64 [P] in steps of 25 ms (>= 1), f0 f32 [F] in Hz (voiced above 40), energy f32 [F]."""
        durations = torch.zeros_like(ids)
        f0 = [torch.zeros(0, device=ids.device)]
        energy = list(f0)
        for a, b in self._utterances(ids):
            durations[a:b], own_f0, own_energy = self._prosody(ids[a:b], self._speed)
            f0.append(own_f0)
            energy.append(own_energy)
        return durations, torch.cat(f0), torch.cat(energy)

    @torch.no_grad()
    def acoustic(self, ids: Tensor, durations: Tensor, f0: Tensor, energy: Tensor) -> Tensor:
        """Values of `prosody` -> spectrum f32 [F, 601, 2]: real and imaginary part, bins of 20 Hz."""
        self._check_frames(ids, durations, f0, energy)
        out = torch.empty(f0.shape[0], dsp.BINS, dtype=torch.complex64, device=f0.device)
        done = 0
        for a, b in self._utterances(ids):
            end = done + FRAMES_PER_STEP * int(durations[a:b].sum())
            pitch = f0[done:end]
            windows = torch.split(dsp.pulse_frames(pitch), _BLOCK)
            blocks = self._acoustic(ids[a:b], durations[a:b], pitch, energy[done:end], _BLOCK)
            for parts, frames in zip(blocks, windows, strict=True):
                z = dsp.noise(self._seed, done, frames.shape[0]).to(f0.device)
                out[done : done + frames.shape[0]] = dsp.compose(parts, frames, z)
                done += frames.shape[0]
        return torch.view_as_real(out)

    @torch.no_grad()
    def istft(self, spectrum: Tensor) -> Tensor:
        """Spectrum f32 [F, 601, 2] -> samples f32 [300 F] at 24 kHz, mostly within -1..1 (not clipped)."""
        if spectrum.ndim != 3 or spectrum.shape[1:] != (dsp.BINS, 2):
            raise BadRequest(f"the spectrum has shape {list(spectrum.shape)}, expected [F, {dsp.BINS}, 2]", "spectrum")
        return dsp.inverse(torch.view_as_complex(spectrum.contiguous()), 4 * _BLOCK)

    def _utterances(self, ids: Tensor) -> Iterator[tuple[int, int]]:
        """Bounds of the utterances: the ids cut between two neighbouring pads. Fewer than three ids say nothing."""
        if ids.ndim != 1 or ids.dtype != torch.int64:
            raise BadRequest(f"phoneme ids are {ids.dtype} {list(ids.shape)}, expected i64 [P]", "ids")
        values: list[int] = ids.tolist()
        if values and (min(values) < 0 or max(values) >= VOCAB):
            raise BadRequest(f"phoneme ids lie in {min(values)}..{max(values)}, outside 0..{VOCAB - 1}", "ids")
        cuts = [i for i in range(1, len(values)) if values[i - 1] == values[i] == PAD]
        for start, end in pairwise([0, *cuts, len(values)]):
            if end - start >= _SHORTEST:
                yield start, end

    def _check_frames(self, ids: Tensor, durations: Tensor, f0: Tensor, energy: Tensor) -> None:
        if durations.shape != ids.shape:
            raise BadRequest(f"durations {list(durations.shape)} do not match ids {list(ids.shape)}", "durations")
        if any(int(durations[a:b].min()) < 1 for a, b in self._utterances(ids)):
            raise BadRequest("durations give a phoneme less than one step", "durations")
        frames = FRAMES_PER_STEP * sum(int(durations[a:b].sum()) for a, b in self._utterances(ids))
        if f0.shape != (frames,) or energy.shape != (frames,):
            raise BadRequest(
                f"durations say {frames} frames, f0 has {list(f0.shape)} and energy {list(energy.shape)}", "durations"
            )


def _number(config: Mapping[str, Any], key: str, default: float, low: float, high: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise LoadError(f"voice config `{key}` is {value!r}, expected a number in {low}..{high}")
    return value
