"""`mstarc run` and `mstarc call`: what reaches the runtime, what is refused before, and one real call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mstarc.cli.guard import Failure
from mstarc.cli.serving import with_threads
from mstarc.cli.values import extra_params, pairs, plain_value, typed_value
from mstarc_runtime.abi.linked import Linked, RankLink
from mstarc_runtime.abi.messages import ABI
from tests.cli.conftest import ROOT, Command

HELLO = "examples/hello/generated"
ASK = "generated/ask"
Calls = list[dict[str, Any]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Records what the runtime is asked for, and gives back 7."""
    found: Calls = []

    def record(linked: Linked, *args: Any, **options: Any) -> int:
        found.append({"linked": linked, "args": args, **options})
        return 7

    monkeypatch.setattr("mstarc_runtime.serving.cli.call_once", record)
    monkeypatch.setattr("mstarc_runtime.serving.cli.run_server", record)
    return found


def test_call_hands_everything_on(mstarc: Command, calls: Calls, tmp_path: Path) -> None:
    sound = tmp_path / "a.wav"
    ran = mstarc(
        *("call", ASK, "--text", "hi", "--audio", sound, "-o", "answer.wav", "--param", "temperature=0.5"),
        *(
            "--placement",
            "2xcpu",
            "--request",
            "chat",
            "--max-tokens",
            "5",
            "--ignore-eos",
            "--top-p=0.9",
            "--seed",
            "3",
        ),
        *("--wants", "text", "--wants", "audio", "--deadline", "2.5"),
    )
    assert ran.status == 7, ran.err
    (call,) = calls
    assert call["linked"].placement == "2xcpu"
    assert call["params"] == {"temperature": 0.5, "max_tokens": 5, "ignore_eos": True, "top_p": 0.9}
    assert (call["text"], call["audio"], call["output"], call["request"]) == ("hi", sound, Path("answer.wav"), "chat")
    assert (call["wants"], call["seed"], call["deadline_s"], call["inputs"]) == ({"text", "audio"}, 3, 2.5, {})


def test_call_with_inputs_of_their_kinds(mstarc: Command, calls: Calls, tmp_path: Path) -> None:
    assert mstarc("call", HELLO, "--input", "start=995", "--max-steps", "3").status == 7
    assert (calls[0]["inputs"], calls[0]["params"]) == ({"start": 995}, {"max_steps": 3})
    assert "deadline_s" not in calls[0], "the runtime has its own default"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--input", "start"), "name=value"),
        (("--input", "start=1", "--input", "start=2"), "twice"),
        (("--max-steps",), "needs a value"),
        (("--max-steps", "1", "--param", "max_steps=2"), "twice"),
        (("stray",), "stray"),
        (("--input", "start=@/no/such/file"), "cannot be read"),
    ],
)
def test_call_refuses(mstarc: Command, calls: Calls, args: tuple[str, ...], says: str) -> None:
    ran = mstarc("call", HELLO, *args)
    assert (ran.status, ran.out, calls) == (2, "", [])
    assert says in ran.err


def test_run_hands_everything_on(mstarc: Command, calls: Calls) -> None:
    assert mstarc("run", HELLO, "--port", "0").status == 7
    assert mstarc("run", ASK, "-p", "2xcpu", "--host", "0.0.0.0", "--port", "81", "--deadline", "9").status == 7
    assert [call["args"] for call in calls] == [("127.0.0.1", 0), ("0.0.0.0", 81)]
    assert "deadline_s" not in calls[0] and calls[1]["deadline_s"] == 9.0
    assert len(calls[1]["linked"].ranks) == 2
    assert mstarc("run", HELLO, "--port", "70000").status == 2


def test_a_package_without_its_python(mstarc: Command, project: Path, calls: Calls) -> None:
    (project / "generated/hello/conductor.py").unlink()
    ran = mstarc("call", "generated/hello", "--input", "start=1")
    assert (ran.status, "conductor.py does not exist" in ran.err, calls) == (1, True, [])


def test_a_stale_package_runs_and_is_told(mstarc: Command, project: Path, calls: Calls) -> None:
    spec = project / "specs/hello.walk"
    spec.write_text(spec.read_text() + "\n# more\n")
    for args in (("call", "generated/hello", "--input", "start=1"), ("run", "generated/hello")):
        ran = mstarc(*args)
        assert ran.status == 7 and ran.err.startswith("warning: specs/hello.walk or hello.yaml has changed since")
    assert len(calls) == 2


def test_a_runtime_that_is_not_installed() -> None:
    """In a process of its own: modules that are imported twice would be two for the tests after it."""
    missing = "import sys; sys.modules['fastapi'] = sys.modules['zmq'] = None"
    code = f"{missing}; from mstarc.cli import main; sys.exit(main(['run', {HELLO!r}]))"
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1, ran.stderr
    assert "which is not installed" in ran.stderr and "pip install" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_threads_that_no_placement_names_are_shared() -> None:
    def threads(given: list[int], cores: int) -> list[int]:
        ranks = [RankLink(rank=i, threads=n) for i, n in enumerate(given)]
        linked = Linked(
            abi=ABI, model="m", package="p", digest="d", ranks=ranks, config={}, nodes=[], caches=[], contexts=[],
            samplers=[], streams=[], walks=[], externs={}, checkpoints=[],
        )  # fmt: skip
        return [rank.threads for rank in with_threads(linked, cores).ranks]

    assert threads([0], 8) == [7]
    assert threads([0], 1) == [1]
    assert threads([0, 0], 8) == [4, 3]
    assert threads([0, 2, 0], 8) == [3, 2, 2]
    assert threads([3, 2], 64) == [3, 2]
    assert threads([0, 0, 0], 2) == [1, 1, 1]


def test_values(tmp_path: Path) -> None:
    assert [plain_value(t) for t in ("5", "0.5", "true", "[1, 2]", '"5"', "hi", "", "NaN")] == [
        5, 0.5, True, [1, 2], "5", "hi", "", "NaN",
    ]  # fmt: skip
    assert pairs(["a=b=c", "d="], "--x") == {"a": "b=c", "d": ""}
    assert typed_value("5", "text", "--x") == "5", "a text stays a text"
    file = tmp_path / "f"
    file.write_bytes(b"[7]")
    assert typed_value(f"@{file}", "image", "--x") == b"[7]"
    assert typed_value(f"@{file}", "tensor", "--x") == [7]
    assert typed_value(f"@{file}", "text", "--x") == "[7]"
    np.save(tmp_path / "a.npy", np.arange(3))
    assert typed_value(f"@{tmp_path / 'a.npy'}", "tensor", "--x").tolist() == [0, 1, 2]
    assert typed_value(f"@{file},@{file}", "list:image", "--x") == [b"[7]", b"[7]"]
    assert typed_value(f"@{file}", "list:image", "--x") == [b"[7]"]
    assert typed_value(f"@{file},@{file}", "video", "--x") == [b"[7]", b"[7]"]
    assert typed_value('[{"data": "YQ=="}]', "list:image", "--x") == [{"data": "YQ=="}]
    (tmp_path / "b.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(Failure, match=r"is a broken \.npy file"):
        typed_value(f"@{tmp_path / 'b.npy'}", "tensor", "--x")
    assert extra_params(["--a-b", "-1", "--c=x y"]) == {"a_b": -1, "c": "x y"}
    assert extra_params(["--on", "--off", "false"], lambda name: True) == {"on": True, "off": False}


def test_a_real_call() -> None:
    command = [sys.executable, "-m", "mstarc", "call", HELLO, "--input", "start=995", "--max-steps", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    numbers = [line for line in done.stdout.splitlines() if line]
    assert [line.split()[-1] for line in numbers if line.startswith("tensor")] == ["995", "996", "997"]
    assert [line.split()[-1] for line in numbers if line.startswith("scalar")] == ["1991", "997"]
