"""specs/whisper.walk on the reference checkpoint: a recording gives the reference's ids; languages, windows, batches, refusals."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from safetensors.torch import load_file

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.models.whisper.components import Encoder, Scribe
from tests.e2e.shipped import GOLDENS, ask, linked, running
from tests.models.whisper_ct2 import byte_tokenizer
from tests.models.whisper_dense import Heard
from tests.shipped import loader

load = loader("whisper")

FOLDER = GOLDENS / "whisper"
CASES: dict[str, Any] = json.loads((FOLDER / "cases.json").read_text())
TENSORS = load_file(FOLDER / "cases.safetensors")
SPEECH = TENSORS["mel.waveform"].numpy()
END = CASES["ids"]["eot"]
ASKED = [  # recording, language, task, the reference's ids
    (SPEECH, "en", "transcribe", "dec.en_transcribe"),
    (SPEECH, "de", "translate", "dec.de_translate"),
    (SPEECH[:16000], "en", "transcribe", "short"),
]


@pytest.fixture(scope="module")
def program() -> Any:
    return linked("whisper", {"whisper": FOLDER})


def wav(samples: Any) -> bytes:
    stored = io.BytesIO()
    soundfile.write(stored, samples, 16000, format="WAV", subtype="FLOAT")
    return stored.getvalue()


async def heard(engine: Any, speech: Any, language: str, task: str, **params: Any) -> list[int]:
    found = await ask(engine, "transcribe", {"speech": speech}, {"language": language, "task": task, **params})
    return [int(token) for token in found.get("text", [])]


def ids_of(name: str) -> list[int]:
    ids: list[int] = TENSORS[f"{name}.generated"].tolist()
    return [token for token in ids if token != END]


async def test_every_case_alone_and_together(program: Any) -> None:
    async with running(program) as engine:
        alone = [await heard(engine, *asked[:3]) for asked in ASKED]
        together = await asyncio.gather(*[heard(engine, wav(asked[0]), *asked[1:3]) for asked in ASKED])
    for asked, one, other in zip(ASKED, alone, together, strict=True):
        assert one == other == ids_of(asked[3])


async def test_the_language_is_told_from_the_first_window(program: Any) -> None:
    """`auto` is the language whose token is likeliest after the start; the answer is then that of the language."""
    encoder, scribe = (load(cls, Checkpoint(path=FOLDER), {}, "cpu") for cls in (Encoder, Scribe))
    request = Heard(scribe, encoder.encode(TENSORS["mel.features"]))
    logits = scribe.read(request.run(1), TENSORS["dec.en_transcribe.prompt"][:1])[0]
    name = max(CASES["ids"]["languages"].items(), key=lambda item: float(logits[item[1]]))[0].strip("<|>")
    async with running(program) as engine:
        assert await heard(engine, SPEECH, "auto", "transcribe") == await heard(engine, SPEECH, name, "transcribe")


async def test_a_long_recording_is_heard_window_by_window(program: Any) -> None:
    """Windows of four seconds here, cut where it is quiet; contexts begin anew for each."""
    long = np.concatenate([SPEECH, np.zeros(16000, np.float32), SPEECH[:16000], np.zeros(3000, np.float32)])
    async with running(program) as engine:
        whole = await heard(engine, long, "en", "transcribe")
        host = engine.externs["prepare"]
        _, windows, _ = host(long, "en")
        parts = [await heard(engine, each, "en", "transcribe") for each in _pieces(long)]
    assert len(windows) == 2 and whole == [token for part in parts for token in part]


def _pieces(samples: Any) -> list[Any]:
    from mstarc_runtime.models.audio_input import split_windows

    return split_windows(samples, 4.0)


async def test_max_tokens_cuts_a_window(program: Any) -> None:
    async with running(program) as engine:
        run = await engine.submit("transcribe", {"speech": SPEECH}, {"language": "en", "max_tokens": 5})
        ids = [int(event.value) async for event in run.events()]
    assert ids == ids_of("dec.en_transcribe")[:5] and run.outcome.causes == {"write.writing": "max"}


async def test_text_comes_with_the_ids(program: Any, tmp_path: Path) -> None:
    """With a tokenizer beside the weights: what is pushed id by id is the text of all of them."""
    folder = Path(shutil.copytree(FOLDER, tmp_path / "whisper"))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    async with running(linked("whisper", {"whisper": folder})) as engine:
        ids = await heard(engine, SPEECH, "en", "transcribe")
        stream = engine.externs.bind("mstarc_runtime.models.whisper.host.WhisperHost.text_stream")()
        text = "".join(stream.push(token) for token in ids) + stream.finish()
    assert text == byte_tokenizer().decode(ids)


@pytest.mark.parametrize(
    ("speech", "params", "field"),
    [
        (b"junk", {}, "speech"),
        (np.zeros((2, 3), np.float32), {}, "speech"),
        (np.full(100, np.nan, np.float32), {}, "speech"),
        (SPEECH, {"language": "klingon"}, "language"),
        (SPEECH, {"task": "sing"}, "task"),
        (SPEECH, {"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_does_not_fit_is_refused(program: Any, speech: Any, params: dict[str, Any], field: str) -> None:
    async with running(program) as engine:
        with pytest.raises(BadRequest) as caught:
            await ask(engine, "transcribe", {"speech": speech}, params)
    assert caught.value.field == field
