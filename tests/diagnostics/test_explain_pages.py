"""Every explain page is compiled: the failing block gives exactly the page's code, the passing block nothing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mstarc.checked import Checked
from mstarc.cli import explaining, main
from mstarc.cli.costs import CostCall, estimates
from mstarc.cli.dry_run import judge
from mstarc.cli.packages import Package
from mstarc.codegen.package import compile_model
from mstarc.diagnostics.core import Collector
from mstarc.diagnostics.machine import explain_page
from mstarc.diagnostics.rules import rule_state
from mstarc.diagnostics.text import render_all
from mstarc.plan.link import link
from mstarc.plan.lopsided import report_lopsided
from mstarc.plan.model import NAME, Plan, to_text
from mstarc.plan.placement import Placement, read_placement
from mstarc.source import SourceFile
from mstarc.workspace import load_model

ALL = explaining.RULES
#: pages without a failing block: MC000 is nobody's file, that of MC012 is no text, that of MC016 was edited after it was compiled
BARE = {"MC000", "MC012", "MC016"}
CODES = [code for code in ALL if rule_state(code) in ("checked", "link", "weights") and code not in BARE]


def blocks(code: str, heading: str) -> dict[str, str]:
    """The code blocks of one section of a page, by language."""
    page = explain_page(code)
    assert page is not None
    section = page.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.M | re.S)
    assert len(dict(found)) == len(found) > 0
    return dict(found)


def compiled(code: str, heading: str, folder: Path) -> tuple[list[str], str]:
    """Codes of the findings of a section's model, linked if there is a placement, and how they look."""
    parts = blocks(code, heading)
    for language, text in parts.items():
        (folder / f"page.{language}").write_text(text, encoding="utf-8")
    checked = load_model(folder / "page.walk").checked
    if {"toml", "plan"} & parts.keys() and not checked.findings:
        checked = linked(folder)
    if "json" in parts and not checked.findings:
        checked = held(folder)
    found = [d for d in checked.findings if _counts(d.rule.code, code)]
    return [d.rule.code for d in found], render_all(found, checked.sources)


def linked(folder: Path) -> Checked:
    """What linking the page's model under its placement finds, and costs of it; if nothing, what of it the runtime cannot run."""
    out, edits, toml = folder / "out", folder / "page.plan", folder / "page.toml"
    plan = compile_model(folder / "page.walk", out).plan
    assert plan is not None
    if edits.is_file():
        plan = edited(plan, edits.read_text(encoding="utf-8"))
    out.mkdir()
    (out / NAME).write_text(to_text(plan), encoding="utf-8")
    report, limits = Collector(), Collector()
    placement = read_placement(toml, report) if toml.is_file() else Placement()
    linked = None if placement is None else link(plan, placement, out, report, limits=limits)
    if linked is not None and placement is not None:
        report_lopsided(estimates(Package(out, plan, linked, placement, {}), CostCall()), placement, report)
    files = [file for file in (folder / "page.walk", toml, out / NAME) if file.is_file()]
    return Checked(
        report.findings() or limits.findings(), {str(file): SourceFile(str(file), file.read_text()) for file in files}
    )


def edited(plan: Plan, text: str) -> Plan:
    """The plan after edits by hand: `walks.w.loops.go.whole = true`, a line each. Rows of a list go by their name or label."""
    tree = msgspec.to_builtins(plan)
    for line in text.splitlines():
        path, _, value = line.partition(" = ")
        *steps, last = path.split(".")
        row = tree
        for step in steps:
            named = isinstance(row, list)
            row = (
                next(r for r in row if step in (r.get("name"), r.get("label"), r.get("stream"))) if named else row[step]
            )
        assert last in row, path
        row[last] = json.loads(value)
    return msgspec.convert(tree, Plan)


def held(folder: Path) -> Checked:
    """What holding the page's checkpoint against the page's component finds: as `mstarc check page.walk --checkpoint head=FOLDER` does."""
    from safetensors.numpy import save_file

    for name, tensors in json.loads((folder / "page.json").read_text()).items():
        (folder / "head").mkdir()
        save_file({each: np.zeros(shape, np.float32) for each, shape in tensors.items()}, folder / "head" / name)
    (folder / "pack").mkdir()
    (folder / "page.python").rename(folder / "pack" / "nets.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        try:
            return judge([str(folder / "page.walk")], {"head": str(folder / "head")}).checked
        finally:
            for module in ("pack", "pack.nets"):  # each page has its own
                sys.modules.pop(module, None)


def _counts(found: str, code: str) -> bool:
    """A page has no binding file unless it is about one."""
    return found != "MC908" or code == "MC908"


@pytest.mark.parametrize("code", CODES)
def test_the_failing_block_gives_exactly_this_code(code: str, tmp_path: Path) -> None:
    codes, text = compiled(code, "Fails", tmp_path)
    assert set(codes) == {code}, text


@pytest.mark.parametrize("code", CODES)
def test_the_passing_block_is_clean(code: str, tmp_path: Path) -> None:
    codes, text = compiled(code, "Passes", tmp_path)
    assert codes == [], text


def test_every_listed_code_can_be_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each code of `explain --list` but the reserved ones is produced here: by its page, or by what no page can hold."""
    met = set()
    for code in CODES:
        folder = tmp_path / code
        folder.mkdir()
        met.update(compiled(code, "Fails", folder)[0])
    met.update(["MC016"] if "error[MC016]" in edited_package(tmp_path / "edited", capsys) else [])
    (tmp_path / "bytes.walk").write_bytes(b"\xff")
    met.update(d.rule.code for d in load_model(tmp_path / "bytes.walk").checked.findings)
    monkeypatch.setattr("mstarc.frontend.load_text", lambda name, text: 1 / 0)
    (tmp_path / "fault.walk").write_text("model m\n")
    met.update(d.rule.code for d in load_model(tmp_path / "fault.walk").checked.findings)
    assert met == {code for code in ALL if rule_state(code) != "reserved"}


def edited_package(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a package of the page of MC016 with an edit as its failing block shows."""
    folder.mkdir()
    (folder / "m.walk").write_text(blocks("MC016", "Passes")["walk"])
    (folder / "m.yaml").write_text("components: {a: math.sin}\n")
    assert main(["compile", str(folder / "m.walk"), "-o", str(folder / "out")]) == 0
    plan = folder / "out" / NAME
    plan.write_text(plan.read_text().replace('"type": "i64[]"', '"type": "i64["', 1))
    assert main(["plan", str(folder / "out")]) == 1
    return capsys.readouterr().err
