"""`run_server` and `call_once` with real worker processes, and what `call` shows of a chat."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.request
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mstarc_runtime.errors import BadRequest, RequestFailed
from mstarc_runtime.serving.call import Call, Telling, call_engine, prepare
from mstarc_runtime.serving.cli import call_once, run_server
from mstarc_runtime.serving.surface import chat_surface
from mstarc_runtime.serving.terminal import Status
from tests.runtime import toy
from tests.serving import parrot
from tests.serving.parrot import Turn, settled

ROOT = Path(__file__).parents[2]


@contextmanager
def running(folder: Path, call: str) -> Iterator[subprocess.Popen[str]]:
    """A process that makes one call on the toy; killed if it is still there at the end."""
    code = f"""
        import sys
        from pathlib import Path
        from mstarc_runtime.serving.cli import call_once, run_server
        from tests.runtime import toy
        linked = toy.linked(Path({str(folder)!r}), ranks=2)
        sys.exit({call})
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "runtime")]), "MSTARC_API_KEY": ""}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    guard = threading.Timer(60, process.kill)
    guard.start()
    try:
        yield process
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as response:
        return json.load(response)


def test_server_from_start_to_signal(tmp_path: Path) -> None:
    with running(tmp_path, "run_server(linked, '127.0.0.1', 0, grace_s=1)") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving toy on http://127.0.0.1:"), process.communicate()
        url = line.split()[-1]
        found = post(f"{url}/v1/walks/sums", {"inputs": {"start": 1}, "params": {"steps": 4}})
        assert [event["value"] for event in found["events"] if event["modality"] == "scalar"] == [3, 7]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert out == ""
    assert "Traceback" not in err


def test_port_in_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from mstarc_runtime.serving.server import address, listen

    with listen("127.0.0.1", 0) as taken:
        port = int(address(taken).rpartition(":")[2])
        assert run_server(toy.linked(tmp_path), "127.0.0.1", port) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


def test_call_with_worker_processes(tmp_path: Path) -> None:
    with running(tmp_path, "call_once(linked, inputs={'start': 1}, params={'steps': 4}, request='sums')") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == sorted([*(f"tensor: {i}" for i in range(1, 5)), "scalar: 3", "scalar: 7"])
    assert "loaded toy in" in err
    assert "total" in err
    assert "count.counting: max" in err


def test_interrupted_call(tmp_path: Path) -> None:
    endless = "call_once(linked, inputs={'start': 1}, params={'steps': 100000}, request='alone')"
    with running(tmp_path, endless) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "tensor: 1\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err.rstrip().endswith("error: interrupted")
    assert "Traceback" not in err


def test_wrong_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    linked = toy.linked(tmp_path)
    assert call_once(linked, output=tmp_path / "no" / "answer.wav", request="sums") == 2
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"params": {"steps": 10**9}}, "`steps` must be in 0..100000"),
        ({"params": {"stps": 3}}, "unknown parameter `stps`; did you mean `steps`?"),
        ({"params": {"steps": "loud"}}, "`steps` must be a number"),
        ({"wants": {"image"}}, "gives scalar, tensor, not image"),
    ],
)
def test_wrong_params_and_wants_start_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: dict[str, Any], words: str
) -> None:
    """A rank of this program could not start: what is told is what is wrong with the call."""
    found = toy.linked(tmp_path)
    linked = replace(found, nodes=[replace(node, component="nowhere.Node") for node in found.nodes])
    assert call_once(linked, inputs={"start": 1}, request="sums", **asked) == 2
    assert words in capsys.readouterr().err


async def shown(call: Call, script: Any = parrot.parrot, **changes: Any) -> tuple[str, str]:
    """stdout and stderr of a call on the parrot."""
    engine, _ = parrot.engine(script, **changes)
    await engine.start()
    surface = chat_surface(engine.linked, engine.program, engine.externs)
    out, err = io.StringIO(), io.StringIO()
    try:
        await call_engine(engine, prepare(engine, surface, call), call, Status(err), Telling(surface, out))
    finally:
        await settled(engine)
        await engine.stop()
    return out.getvalue(), err.getvalue()


async def test_call_shows_text_and_writes_audio(tmp_path: Path) -> None:
    path = tmp_path / "answer.wav"
    out, err = await shown(Call({}, {}, text="héllo you", output=path))
    assert out == "héllo you\n"
    for words in ("first token", "first audio", "real-time factor", "10 tokens", "answer.speaking: stop"):
        assert words in err
    assert "stalls   chunk lateness: mean" in err
    assert f"wrote {path}: 0.20 s at 24000 Hz" in err
    with wave.open(str(path)) as file:
        assert (file.getnframes(), file.getframerate()) == (4800, 24000)


async def test_call_speaks_and_listens(tmp_path: Path) -> None:
    recording = tmp_path / "question.wav"
    recording.write_bytes(b"RIFFx")
    parrot.seen.clear()
    out, err = await shown(Call({}, {"max_tokens": 4}, text="listen:", audio=recording))
    assert out == "RIFF\n"
    assert "first audio" not in err
    assert [part.kind for part in parrot.seen[0]] == ["text", "audio"]
    assert parrot.seen[0][1].data == b"RIFFx"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call({}, {"max_tokens": -1}, text="a"), "max_tokens"),
        (Call({}, {}, text="a", request="cha"), "no request `cha`; there are chat, echo"),
        (Call({}, {}), "needs the input `messages`"),
        (Call({}, {}, audio=Path("/nowhere.wav")), "/nowhere.wav cannot be read"),
        (Call({}, {}, text="a", request="echo", output=Path("x.wav")), "gives no audio"),
        (Call({}, {}, audio=Path("x.wav"), request="echo"), "0 inputs of kind audio"),
        (Call({}, {}, text="a", wants=frozenset({"smell"})), "not smell"),
    ],
)
async def test_call_refuses(call: Call, words: str) -> None:
    with pytest.raises(BadRequest, match=words.replace("(", r"\(")):
        await shown(call)


async def test_call_of_a_request_with_a_text_input() -> None:
    assert (await shown(Call({}, {}, text="ab", request="echo")))[0] == "ab\n"


async def test_call_that_fails_keeps_what_was_said(tmp_path: Path) -> None:
    async def breaks(turn: Turn) -> None:
        turn.say("so far")
        turn.fail("the beak broke")

    out = io.StringIO()
    engine, _ = parrot.engine(breaks)
    await engine.start()
    surface = chat_surface(engine.linked, engine.program, engine.externs)
    with pytest.raises(RequestFailed, match="the beak broke"):
        call = Call({}, {}, text="a")
        await call_engine(engine, prepare(engine, surface, call), call, Status(io.StringIO()), Telling(surface, out))
    await engine.stop()
    assert out.getvalue() == "so far\n"


async def test_call_without_audio_writes_no_file(tmp_path: Path) -> None:
    async def mute(turn: Turn) -> None:
        turn.say("hm")
        turn.end()

    path = tmp_path / "answer.wav"
    with pytest.raises(RequestFailed, match="no audio came"):
        await shown(Call({}, {}, text="a", output=path), mute)
    assert not path.exists()
