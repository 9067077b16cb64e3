"""What every generated file keeps: `ruff format` leaves it alone, its vocabulary is closed, it has types, and its bytes repeat."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mstarc.codegen.package import LINES, compile_model, find_packages
from mstarc.codegen.render import render
from mstarc.ir.text import parse_program
from mstarc.plan.model import NAME, to_text
from tests.interp.random_programs import Generator

ROOT = Path(__file__).resolve().parents[2]
SPECS = (ROOT / "specs/ask.walk", ROOT / "specs/bagel.walk", ROOT / "examples/hello/hello.walk")


def compiled(spec: Path) -> dict[str, str]:
    found = compile_model(spec, ROOT / "generated" / spec.stem)
    assert found.files, found.fault or [d.message for d in found.model.checked.findings]
    return found.files


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the Python of the shipped models and of forty random programs."""
    folder = tmp_path_factory.mktemp("generated")
    packages = {spec.stem: compiled(spec) for spec in SPECS}
    packages |= {f"random_{seed}": render(parse_program(Generator(seed).text()), "x.walk") for seed in range(40)}
    for name, files in packages.items():
        (folder / name).mkdir()
        for file, text in files.items():
            if file.endswith(".py"):
                (folder / name / file).write_text(text, encoding="utf-8")
    return folder


def test_ruff_format_changes_nothing(sources: Path) -> None:
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "120", "--diff", str(sources)]
    found = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-500:]


def test_mypy_accepts_it(sources: Path) -> None:
    files = [str(sources / spec.stem / name) for spec in SPECS for name in ("worker.py", "conductor.py")]
    for name in ("worker.py", "conductor.py"):
        mypy = [sys.executable, "-m", "mypy", "--config-file=", "--check-untyped-defs", "--follow-imports=silent"]
        chosen = [file for file in files if file.endswith(name)]
        for file in chosen:
            found = subprocess.run(
                [*mypy, file],
                capture_output=True,
                text=True,
                check=False,
                cwd=ROOT,
                env={**os.environ, "MYPYPATH": str(ROOT / "runtime")},
            )
            assert found.returncode == 0, found.stdout


WORKER_VERBS = {
    "call",
    "parallel",
    "loop",
    "send",
    "take",
    "extern",
    "sample",
    "noise",
    "emit",
    "fork",
    "drop",
    "true",
    "cause",
    "cat",
    "rows",
}
BATCH_VERBS = {"at", "stop", "call", "arm", "parallel", "number", "guide", "sample", "noise", "emit", "send", "collect"}
REQUEST_VERBS = {"extern", "walk", "start", "together", "require", "wants", "given"}
NEED_VERBS = {"write", "drop", "fork", "rows"}
VERBS = {"walk": WORKER_VERBS | {"host"}, "b": BATCH_VERBS, "request": REQUEST_VERBS, "need": NEED_VERBS}
FREE_CALLS = {"range", "len", "max", "min", "linspace", "shift", "Param", "Entry", "Input", "bool"}
STATEMENTS = (ast.Assign, ast.Expr, ast.Return, ast.If, ast.For, ast.While, ast.Break, ast.Pass)


def impurities(text: str) -> list[str]:
    """Everything in generated code that is none of its verbs and statements."""
    tree = ast.parse(text)
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += _call_faults(node)
        elif isinstance(node, ast.stmt) and not isinstance(node, (*STATEMENTS, ast.ClassDef, ast.FunctionDef)):
            if not (isinstance(node, ast.ImportFrom) and node.module in ("typing", "mstarc_runtime.program")):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Lambda) and [arg.arg for arg in node.args.args] == ["row"]:
            pass  # what the host knows of a row, as an argument of `b.number` or `b.guide`
        elif isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.Await):
            found.append(ast.unparse(node))
    return found


def _call_faults(node: ast.Call) -> list[str]:
    match node.func:
        case ast.Name(name) if name in FREE_CALLS:
            return []
        case ast.Attribute(ast.Name(owner), verb) if verb in VERBS.get(owner, ()) or owner == "self":
            return []
        case ast.Attribute(ast.Attribute(ast.Name("walk" | "b"), "host"), "wants" | "given"):
            return []
        case ast.Attribute(ast.Name(name), "append") if name.endswith("_items"):
            return []
    return [ast.unparse(node)]


def test_vocabulary_is_closed(sources: Path) -> None:
    for path in sorted(sources.rglob("*.py")):
        assert impurities(path.read_text()) == [], path


@pytest.mark.parametrize("bad", ["open('x')", "import os", "x = [i for i in y]", "walk.close()", "b.rows.append(1)"])
def test_the_vocabulary_test_sees(bad: str) -> None:
    assert impurities(f"def f(walk, b):\n    {bad}\n")


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.stem)
def test_files_are_short(spec: Path) -> None:
    assert max(text.count("\n") for name, text in compiled(spec).items() if name != NAME) <= LINES


_COMPILE = """
import sys
from pathlib import Path
from mstarc.codegen.package import compile_model
for name, text in sorted(compile_model(Path(sys.argv[1]), Path(sys.argv[2])).files.items()):
    print(name, text)
print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy')))
"""


def test_bytes_repeat_under_other_seeds_and_paths_and_without_torch(tmp_path: Path) -> None:
    """Two hash seeds, two locales, two checkouts, and a relative path: one output; and no array library is imported."""
    outputs = set()
    near, far = tmp_path / "a", tmp_path / "deeper" / "b"
    for seed, folder, given, locale in (("0", near, Path(), "C"), ("77", far, far, "C.UTF-8")):
        shutil.copytree(ROOT / "specs", folder / "specs")
        env = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}"}
        env["PYTHONIOENCODING"] = "utf-8"
        paths = (str(given / "specs/ask.walk"), str(given / "generated/ask"))
        run = subprocess.run(
            [sys.executable, "-c", _COMPILE, *paths], capture_output=True, cwd=folder, env=env, check=True
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1
    text = outputs.pop().decode()
    assert text.endswith("[]\n")
    assert str(tmp_path) not in text


def test_shipped_packages_are_fresh() -> None:
    packages, without = find_packages(ROOT)
    assert {package.name for package in packages} >= {"ask", "generated"}
    assert all(compile_model(spec, ROOT / "generated" / spec.stem).fault is not None for spec in without), without
    for package in packages:
        found = compile_model(_spec_of(package), package)
        for name, text in found.files.items():
            assert (package / name).read_text(encoding="utf-8") == text, f"{package / name}: run `mstarc compile`"
        assert found.plan is not None
        assert to_text(found.plan) == found.files[NAME]


def _spec_of(package: Path) -> Path:
    name = package.parent.name if package.name == "generated" else package.name
    return next(path for path in (*ROOT.glob("specs/*.walk"), *SPECS) if path.stem == name)
