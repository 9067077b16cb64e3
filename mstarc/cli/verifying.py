"""`mstarc verify`: a folder of reference data against the runtime's components. The runtime is imported here, and only then."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mstarc.cli.guard import FINDINGS, OK, USAGE, Failure, say
from mstarc.cli.serving import runtime_module


def run_verify(folder: str, model: str | None, device: str, dtype: str, format: str) -> int:
    """Print the comparisons. Status 1: one is beyond its tolerance; 2: the folder, or its checkpoint, cannot be used."""
    verification = runtime_module("mstarc_runtime.verify")
    try:
        report = verification.verify(Path(folder), model, verification.Setup(device, dtype))
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
