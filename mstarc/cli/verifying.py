"""`mstarc verify`: a folder of reference data against the runtime's components. The runtime is imported here, and only then."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mstarc
from mstarc.binding import read_binding
from mstarc.cli.findings import write_findings
from mstarc.cli.guard import FINDINGS, OK, USAGE, Failure, say
from mstarc.cli.serving import runtime_module
from mstarc.diagnostics.core import Collector
from mstarc.source import SourceFile

SPECS = (
    Path("specs"),
    Path(mstarc.__file__).parents[1] / "specs",
)  # of the project that the command runs in; of a checkout


def weight_rules(model: str) -> dict[str, list[dict[str, Any]]]:
    """By node, how the binding of a model's spec maps the tensors of a checkpoint. Raises Failure (usage) if there is none to be read."""
    path = next((folder / f"{model}.yaml" for folder in SPECS if (folder / f"{model}.yaml").is_file()), None)
    if path is None:
        looked = " and ".join(str(folder / f"{model}.yaml") for folder in SPECS)
        raise Failure(
            f"there is no binding of `{model}`, which says how weights are mapped", USAGE, help=f"looked for {looked}"
        )
    report = Collector()
    bound = read_binding(SourceFile(str(path), path.read_text(encoding="utf-8")), report)
    if bound is None:
        write_findings(report.findings())
        raise Failure(f"{path} cannot be read", USAGE)
    return {node: component.weights for node, component in bound.binding.components.items()}


def run_verify(folder: str, model: str | None, device: str, dtype: str, format: str) -> int:
    """Print the comparisons. Status 1: one is beyond its tolerance; 2: the folder, or its checkpoint, cannot be used."""
    verification = runtime_module("mstarc_runtime.verify")
    try:
        rules = weight_rules(verification.model_of(Path(folder), model))
        report = verification.verify(Path(folder), model, verification.Setup(device, dtype, rules))
    except verification.UnusableFolder as error:
        raise Failure(str(error), USAGE) from None
    if format == "json":
        document = {**report.document(), "device": device}
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    else:
        for line in report.lines():
            print(line)
    failed = sum(not check.passed for check in report.checks)
    total = f"{report.model} on {device} in {report.dtype}: {len(report.checks)} comparisons"
    say(f"{total}, {failed} failed" if failed else f"{total}, all within tolerance")
    return OK if report.passed else FINDINGS
