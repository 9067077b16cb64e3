"""What a newcomer tries first: arrays from files, bare `compile --check` in a new model, a reader that leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import HELLO, Command

LOOK = """model look
node eye : stateless { op see(x: f32[2, 3]) -> y: f32[2] }
walk w(x: f32[2, 3]) { emit eye.see(x) as tensor }
request r(x: f32[2, 3]) -> tensor { w(x) }
"""


def test_interpret_takes_an_array_from_a_file(mstarc: Command, tmp_path: Path) -> None:
    (tmp_path / "look.walk").write_text(LOOK, encoding="utf-8")
    rows = np.arange(6, dtype=np.float64).reshape(2, 3)
    np.save(tmp_path / "x.npy", rows)
    from_file = mstarc("interpret", str(tmp_path / "look.walk"), "--input", f"x=@{tmp_path / 'x.npy'}")
    written = mstarc("interpret", str(tmp_path / "look.walk"), "--input", f"x={rows.tolist()}")
    assert from_file.status == written.status == 0, from_file.err
    assert from_file.out == written.out


def test_a_wrong_array_is_not_shown_whole(mstarc: Command, tmp_path: Path) -> None:
    (tmp_path / "look.walk").write_text(LOOK, encoding="utf-8")
    ran = mstarc("interpret", str(tmp_path / "look.walk"), "--input", f"x={[['long' * 500] * 3] * 2}".replace("'", '"'))
    assert ran.status == 2 and "input `x` must be" in ran.err and len(ran.err.splitlines()[-1]) < 120


def test_bare_check_covers_the_package_of_a_new_model(
    mstarc: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "look.walk").write_text(LOOK, encoding="utf-8")
    (tmp_path / "look.yaml").write_text("components: { eye: parts.Eye }\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert mstarc("compile", "look.walk", "-o", "generated").status == 0
    assert mstarc("compile", "--check").status == 0
    (tmp_path / "look.walk").write_text(LOOK.replace("see", "spy"), encoding="utf-8")
    assert mstarc("compile", "--check").status == 3


@pytest.mark.parametrize("args", [("ir", HELLO), ("plan", "generated/ask"), ("explain", "--list"), ("graph", HELLO)])
def test_a_reader_that_leaves_is_no_fault(args: tuple[str, ...]) -> None:
    status, told = unread(*args)
    assert status == 0 and "rror" not in told, told


def test_nor_is_it_damage_of_a_stale_package(mstarc: Command, tmp_path: Path) -> None:
    spec, package = tmp_path / "look.walk", tmp_path / "generated"
    spec.write_text(LOOK, encoding="utf-8")
    (tmp_path / "look.yaml").write_text("components: { eye: parts.Eye }\n", encoding="utf-8")
    assert mstarc("compile", str(spec), "-o", str(package)).status == 0
    spec.write_text(LOOK.replace("see", "spy"), encoding="utf-8")
    status, told = unread("plan", str(package))
    assert status == 0 and "damaged" not in told, told


def unread(*args: str) -> tuple[int, str]:
    """Status and standard error of a command whose standard output nobody reads; unbuffered, so that it is told at once."""
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(
        [sys.executable, "-u", "-m", "mstarc", *args], stdout=writing, stderr=subprocess.PIPE, timeout=60
    )
    os.close(writing)
    return ran.returncode, ran.stderr.decode()
