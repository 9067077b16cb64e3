"""Real-time factor of the voice on one thread: prints milliseconds per op and seconds of speech per second, for three lengths.

Run from the root of the repository: `PYTHONPATH=.:runtime python tests/bench/bench_hibari_cpu.py [repeats]`.
"""

from __future__ import annotations

import resource
import sys
import time
from itertools import pairwise

import torch

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.models.hibari import Voice
from mstarc_runtime.models.hibari.g2p import package_assets

PHRASES = (
    "Yes, I think it is.",
    "The capital of France is Paris, a city on the Seine river.",
    "The capital of France is Paris, a city on the Seine river, known for museums, food and the tall iron tower, "
    "which was built for a fair long ago in 1889.",
    "The river runs slowly past the old stone bridge, and nobody on it seems to be in a hurry today. " * 20,
)


def speak(voice: Voice, text: str) -> tuple[list[float], int]:
    """Milliseconds of g2p, prosody, acoustic and istft, and the number of samples."""
    marks = [time.perf_counter()]
    ids = voice.g2p(text)
    marks.append(time.perf_counter())
    prosody = voice.prosody(ids)
    marks.append(time.perf_counter())
    spectrum = voice.acoustic(ids, *prosody)
    marks.append(time.perf_counter())
    samples = voice.istft(spectrum).shape[0]
    marks.append(time.perf_counter())
    return [1e3 * (b - a) for a, b in pairwise(marks)], samples


def main(repeats: int) -> None:
    torch.set_num_threads(1)
    start = time.perf_counter()
    voice = Voice.load(Checkpoint(package_assets()), {}, "cpu")
    loaded = time.perf_counter()
    voice.g2p("Warm up.")
    print(f"load {1e3 * (loaded - start):.0f} ms, lexicons {1e3 * (time.perf_counter() - loaded):.0f} ms")
    print(
        f"{'characters':>10} {'speech s':>9} {'g2p':>7} {'prosody':>8} {'acoustic':>9} {'istft':>6} {'all ms':>7} {'x real time':>12}"
    )
    for text in PHRASES:
        speak(voice, text)
        times, samples = min((speak(voice, text) for _ in range(repeats)), key=lambda run: sum(run[0]))
        seconds, total = samples / voice.SAMPLE_RATE, sum(times)
        g2p, prosody, acoustic, istft = times
        row = f"{len(text):10} {seconds:9.2f} {g2p:7.1f} {prosody:8.1f} {acoustic:9.1f} {istft:6.1f} {total:7.1f}"
        print(f"{row} {1e3 * seconds / total:12.1f}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
