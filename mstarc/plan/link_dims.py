"""Dims at link: MC007 where a checkpoint's own numbers contradict the spec. Takes a plan and the numbers; reports what differs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mstarc.diagnostics.core import Collector
from mstarc.plan.model import Plan, sha256_of


def report_dims(plan: Plan, spec: Path, overrides: Mapping[str, Any], report: Collector) -> None:
    """The spec's dims, compared by these values (`node.key`). Nothing if they are those of the binding, which was compared when the
    package was made, and nothing if the spec is gone or has changed since.
    """
    config = plan.binding.config
    sections = [path.partition(".")[::2] for path in overrides]
    if all(config.get(node, {}).get(key) == overrides[f"{node}.{key}"] for node, key in sections):
        return
    texts = _texts(spec)
    if texts is None or sha256_of(*texts) != plan.spec.digest:
        return
    from mstarc.frontend import load_text
    from mstarc.passes.lower.known import Given

    given = {
        f"{section}.{key}": Given(value, spec.with_suffix(".yaml").name)
        for section, values in config.items()
        for key, value in values.items()
    }
    for path, value in overrides.items():
        checkpoint = plan.binding.components[path.partition(".")[0]]["checkpoint"]
        given[path] = Given(value, f"checkpoint `{checkpoint}`")
    _, found, _ = load_text(str(spec), texts[0], given)
    for diagnostic in found.findings():
        if diagnostic.rule.severity == "error":
            label = diagnostic.primary
            report.report(
                diagnostic.rule,
                diagnostic.message,
                label.span,
                label.text,
                secondary=diagnostic.secondary,
                help=diagnostic.help,
            )


def _texts(spec: Path) -> tuple[str, str] | None:
    """The spec and the binding beside it; None if they cannot be read."""
    beside = spec.with_suffix(".yaml")
    try:
        return spec.read_text(encoding="utf-8"), beside.read_text(encoding="utf-8") if beside.is_file() else ""
    except (OSError, ValueError):
        return None
