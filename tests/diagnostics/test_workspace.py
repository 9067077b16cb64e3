"""From paths to findings: files and folders, bindings, `allow` comments, exit codes, and faults of the compiler itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc import workspace
from mstarc.checked import FINDINGS, INTERNAL, OK, USAGE, Checked, find_models
from mstarc.diagnostics.text import render_all
from mstarc.ir.core import Program
from mstarc.workspace import check, load_model

MODEL = """model m
node a : stateless { op f(x: i64) -> y: i64 }
walk w(x: i64) {
    y = a.f(x)
    z = a.f(x)
    emit y as tensor
}
request r(x: i64) -> tensor { w(x) }
"""
BINDING = "components:\n  a: pack.parts.A\n"


def write(folder: Path, text: str = MODEL, binding: str | None = BINDING, name: str = "m") -> Path:
    path = folder / f"{name}.walk"
    path.write_text(text, encoding="utf-8")
    if binding is not None:
        (folder / f"{name}.yaml").write_text(binding, encoding="utf-8")
    return path


def codes(checked: Checked) -> list[str]:
    return [d.rule.code for d in checked.findings]


def test_a_clean_model(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL.replace("    z = a.f(x)\n", ""))
    model = load_model(path)
    assert codes(model.checked) == [] and not model.failed
    assert model.program is not None and model.binding is not None
    assert model.binding.components["a"].dotted == "pack.parts.A"
    assert check([path]).exit_code() == OK


def test_warnings_fail_only_when_denied(tmp_path: Path) -> None:
    checked = check([write(tmp_path)])
    assert codes(checked) == ["MC006"]
    assert checked.exit_code() == OK and checked.exit_code(deny_warnings=True) == FINDINGS


def test_folders_in_the_order_of_names_and_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    second, first = write(tmp_path, name="b"), write(tmp_path / "deep", name="a")
    files, missing = find_models([tmp_path, second])
    assert files == (str(second), str(first)) and missing == ()
    checked = check([tmp_path])
    assert [d.primary.span.file for d in checked.findings] == [str(second), str(first)]


def test_a_path_without_models_is_a_usage_error(tmp_path: Path) -> None:
    assert check([tmp_path / "none.walk"]).exit_code() == USAGE
    assert check([tmp_path]).missing == (str(tmp_path),)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "m.walk"
    path.write_bytes(b"model m # \xff\n")
    checked = check([path])
    assert codes(checked) == ["MC012"] and "byte 10" in checked.findings[0].message
    assert checked.exit_code() == FINDINGS
    path = write(tmp_path)
    path.with_suffix(".yaml").write_bytes(b"a: \xff\n")
    assert "MC012" in codes(check([path]))


def test_no_binding_is_a_warning(tmp_path: Path) -> None:
    path = write(tmp_path, MODEL.replace("    z = a.f(x)\n", ""), None)
    assert codes(check([path])) == ["MC908"]


def test_the_numbers_of_the_binding_reach_the_checks(tmp_path: Path) -> None:
    text = MODEL.replace("model m\n", "model m\nconfig { n = a.n }\n").replace(
        "    z = a.f(x)\n", "    loop l times n carry y { y = a.f(y) }\n"
    )
    for value, expected in ((3, []), (0, ["MC201"])):
        path = write(tmp_path, text, BINDING + f"config:\n  a: {{n: {value}}}\n")
        assert codes(check([path])) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("    z = a.f(x)  # mstarc: allow MC006 -- to time the op", []),
        ("    # mstarc: allow MC006 -- to time the op\n    z = a.f(x)", []),
        ("    # mstarc: allow MC006 -- to time the op\n\n    z = a.f(x)", ["MC006", "MC015"]),
        ("    z = a.f(x)  # mstarc: allow MC204 -- wrong code", ["MC006", "MC015"]),
        ("    z = a.f(x)  # mstarc: allow MC006", ["MC006", "MC014"]),
        ("    z = a.f(x)  # mstarc: allow MC006 --", ["MC006", "MC014"]),
        ("    z = a.f(x)  # mstarc: allow MC999 -- no such code", ["MC006", "MC014"]),
        ("    z = a.f(x)  # mstarc: allow MC002 -- an error", ["MC006", "MC014"]),
        ("    z = a.f(x)  # mstarc: allowance", ["MC006"]),
    ],
)
def test_allow_comments(line: str, expected: list[str], tmp_path: Path) -> None:
    checked = check([write(tmp_path, MODEL.replace("    z = a.f(x)", line))])
    assert sorted(codes(checked)) == expected, render_all(checked.findings, checked.sources)


def test_a_fault_of_a_check_is_an_internal_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(program: Program, report: object) -> None:
        raise KeyError("token")

    monkeypatch.setattr("mstarc.passes.checks.STAGES", ((broken,),))
    checked = check([write(tmp_path)])
    found = [d for d in checked.findings if d.rule.code == "MC000"]
    assert [d.message for d in found] == ["internal error in pass `broken` failed: KeyError: 'token'"]
    assert checked.exit_code() == INTERNAL
    assert "Traceback" not in render_all(checked.findings, checked.sources)


def test_a_fault_of_the_front_end_is_an_internal_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, text: str) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr("mstarc.frontend.load_text", broken)
    checked = check([write(tmp_path)])
    assert codes(checked) == ["MC000"] and "frontend" in checked.findings[0].message
    assert checked.exit_code() == INTERNAL


@pytest.mark.parametrize("path", ["specs", "examples"])
def test_the_models_of_this_repository_have_no_errors(path: str) -> None:
    root = Path(workspace.__file__).parents[1]
    checked = check([root / path])
    assert checked.findings == (), render_all(checked.findings, checked.sources)
