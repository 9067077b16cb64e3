"""Dotted names of components and externs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from mstarc_runtime.abi.linked import StateLink
from mstarc_runtime.checkpoints import Externs, resolve
from mstarc_runtime.errors import LoadError
from mstarc_runtime.serving.surface import text_decoder
from mstarc_runtime.worker.ops import OpTable
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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("farpack.near.Hots.triple", "`farpack.near` has no `Hots`; did you mean `Host`?"),
        ("farpack.near.Host.tripel", "has no `tripel`; did you mean `triple`?"),
        ("farpack.nere.Host", "`farpack` has no `nere`; did you mean `near`?"),
        ("farpak.near.Host", "no module `farpak` in .*; did you mean `farpack`?"),
    ],
)
def test_the_nearest_name_is_offered(package: str, name: str, message: str) -> None:
    with pytest.raises(LoadError, match=message.replace("?", r"\?")):
        resolve(name)


def test_a_wrong_name_is_told_with_its_key(package: str, tmp_path: Path) -> None:
    """Of an extern, a component, one of its methods, and the text decoder."""
    linked = toy.linked(tmp_path)
    externs = Externs(replace(linked, externs={"twice": f"{package}.near.duoble"}))
    with pytest.raises(LoadError, match=r"`externs\.twice` of the binding: .*did you mean `double`\?"):
        externs["twice"]
    first, *others = linked.nodes
    wrong = replace(linked, nodes=[replace(first, component="tests.runtime.toy.Countre"), *others])
    with pytest.raises(LoadError, match=r"`components\.counter` of the binding: .*did you mean `Counter`\?"):
        OpTable(wrong, 0)
    wrong = replace(linked, nodes=[replace(first, ops=[replace(first.ops[0], name="nxt")]), *others])
    with pytest.raises(LoadError, match=r"no method `nxt` for op `counter\.nxt`; did you mean `next`\?"):
        OpTable(wrong, 0)
    wrong = replace(linked, modalities={"text": {"decoder": f"{package}.near.Hots"}})
    with pytest.raises(LoadError, match=r"`modalities\.text\.decoder` of the binding: .*did you mean `Host`\?"):
        text_decoder(wrong, externs)


def test_a_method_that_does_not_fit_is_told_what_it_is_handed(tmp_path: Path) -> None:
    """`Counter.next(self, x)` under an op that also keeps cells and draws."""
    linked = toy.linked(tmp_path)
    first, *others = linked.nodes
    cells = [StateLink(name="seen", dtype="i64", dims=[], init=0)]
    wrong = replace(linked, nodes=[replace(first, states=cells, ops=[replace(first.ops[0], random=True)]), *others])
    with pytest.raises(LoadError, match=r"op `counter\.next`, which hands it cells, noise, 1 argument: too many"):
        OpTable(wrong, 0)
