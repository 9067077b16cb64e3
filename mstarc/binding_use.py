"""MC909 config-unused: numbers under `config` that nothing reads. Takes a binding and its program; reports to the collector."""

from __future__ import annotations

from collections.abc import Iterator

from mstarc.binding import Bound, nearest
from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Program


def check_config_use(bound: Bound, program: Program, report: Collector) -> None:
    """A section reaches the component of its node; a key, the `config` that reads it; everything, host Python that is an object."""
    nodes = {node.name for node in program.nodes}
    read = {config.path for config in program.configs if config.path}
    if any(_is_method(path) for path in _host_paths(bound)):
        return
    for section, values in bound.binding.config.items():
        if section in nodes:
            continue
        for key in values:
            path = f"{section}.{key}"
            if path in read:
                continue
            near = nearest(path, read) or nearest(section, nodes)
            report.report(
                rules.MC909,
                f"nothing reads `{path}`: `{section}` is no node, and no config of the model is `{path}`",
                bound.place(("config", section, key)),
                subject=path,
                help=f"did you mean `{near}`?" if near else "delete it",
            )


def _host_paths(bound: Bound) -> Iterator[str]:
    """Dotted paths of host Python: externs, and what serves a modality."""
    yield from bound.binding.externs.values()
    for given in bound.binding.modalities.values():
        if isinstance(given, dict):
            yield from (value for value in given.values() if isinstance(value, str) and "." in value)


def _is_method(path: str) -> bool:
    """`module.Class.method`: its class is made with the whole config."""
    parts = path.split(".")
    return len(parts) > 2 and parts[-2][:1].isupper()
