"""Dotted names of components and externs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mstarc_runtime.checkpoints import Externs, resolve
from mstarc_runtime.errors import LoadError
from tests.runtime import toy


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose submodule nothing has imported yet."""
    folder = tmp_path / "farpack"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "near.py").write_text(
        "def double(x):\n    return 2 * x\n\n\nclass Host:\n    def triple(self, x):\n        return 3 * x\n"
    )
    (folder / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("farpack")]:
        monkeypatch.delitem(sys.modules, name)
    return "farpack"


def test_an_extern_that_is_a_function_of_a_submodule(package: str, tmp_path: Path) -> None:
    externs = Externs(toy.linked(tmp_path))
    assert externs.bind(f"{package}.near.double")(4) == 8


def test_a_module_a_class_and_a_method(package: str) -> None:
    assert resolve(f"{package}.near").__name__ == f"{package}.near"
    assert resolve(f"{package}.near.Host.triple")(None, 2) == 6


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.at.all", "no module `nowhere`"),
        ("farpack.near.half", "`farpack.near` has no `half`"),
        ("farpack.broken.f", "importing .* failed: ZeroDivisionError"),
    ],
)
def test_names_that_stand_for_nothing(package: str, name: str, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        resolve(name)
