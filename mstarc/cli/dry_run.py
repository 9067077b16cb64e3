"""`mstarc check --checkpoint NAME=PATH`: the headers of weight files against the components that take them. No tensor is read.

Takes specs that are clean, and paths; gives findings MC910 to MC914. The runtime and the components are imported here, and only then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mstarc.binding import Bound, nearest, read_binding
from mstarc.checked import Checked, find_models, joined
from mstarc.cli.guard import USAGE, Failure
from mstarc.cli.packages import import_from_here
from mstarc.cli.serving import runtime_module
from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Rule
from mstarc.workspace import Model, load_model

if TYPE_CHECKING:
    from mstarc_runtime.weights import Fit, Problem

RULES: dict[str, Rule] = {
    "missing": rules.MC910,
    "unused": rules.MC911,
    "misshaped": rules.MC912,
    "rule": rules.MC913,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found, and a line for each component that was looked at."""

    checked: Checked
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why it cannot be found out what a component would fill, and the key of its binding that this is about."""

    why: str
    key: str


_HELP = {"class": "it is looked up in the current folder, PYTHONPATH and the installed packages"}


def judge(paths: Sequence[str], checkpoints: Mapping[str, str]) -> Judged:
    """Hold checkpoints, paths by name, against the components of these specs. Raises Failure (usage) for a name that no spec has."""
    models = [
        (model, bound) for model in map(load_model, find_models(paths)[0]) if (bound := _bound(model)) is not None
    ]
    known = sorted({name for _, bound in models for name in bound.binding.checkpoints})
    for name, path in checkpoints.items():
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean `{near}`?" if near else f"there are {', '.join(known) or 'none'}"
            raise Failure(f"no spec here has a checkpoint `{name}`", USAGE, help=hint)
        if not Path(path).exists():
            raise Failure(f"checkpoint `{name}`: `{path}` does not exist", USAGE)
    import_from_here()
    lines: list[str] = []
    return Judged(joined([_judged(model, bound, checkpoints, lines) for model, bound in models], ()), lines)


def _bound(model: Model) -> Bound | None:
    source = model.checked.sources.get(str(Path(model.path).with_suffix(".yaml")))
    return None if source is None else read_binding(source, Collector())


def _judged(model: Model, bound: Bound, checkpoints: Mapping[str, str], lines: list[str]) -> Checked:
    report = Collector()
    shared = {node.name for node in model.program.nodes if node.weights} if model.program else set()
    for node, component in bound.binding.components.items():
        if component.checkpoint is None or component.checkpoint not in checkpoints or node in shared:
            continue
        fit = _fit(bound, node, checkpoints[component.checkpoint])
        if isinstance(fit, Unknown):
            at = bound.place(("components", node, fit.key))
            report.report(rules.MC914, f"`{node}`: {fit.why}", at, subject=node, help=_HELP.get(fit.key))
        elif fit is None:
            lines.append(f"{node}: {component.dotted} reads its files itself, and has not been looked at")
        else:
            problems = fit.problems()
            for problem in problems:
                _report(bound, node, problem, report)
            lines += [] if problems else [f"{node}: {len(fit.shapes)} parameters of {len(fit.weights.stored)} tensors"]
    return Checked(report.findings(), model.checked.sources)


def _report(bound: Bound, node: str, problem: Problem, report: Collector) -> None:
    path = ("components", node, "weights")
    at = bound.place((*path, str(problem.rule - 1)) if problem.rule else path)
    report.report(RULES[problem.kind], f"`{node}`: {problem.text}", at, subject=f"{node}.{problem.name}")


def _fit(bound: Bound, node: str, path: str) -> Fit | Unknown | None:
    """What the component of a node would fill; None if its class does not tell."""
    from mstarc_runtime.abi.linked import CheckpointLink

    loading = runtime_module("mstarc_runtime.checkpoints")
    errors = runtime_module("mstarc_runtime.errors")
    component = bound.binding.components[node]
    section = bound.binding.config.get(node, {})
    link = CheckpointLink(name=component.checkpoint or "", path=path)
    about = "class"
    try:
        cls = loading.resolve(component.dotted)
        if not hasattr(cls, "fit"):
            return None
        about = "checkpoint"
        checkpoint = replace(loading.find_checkpoint(link), rules=tuple(component.weights))
        fit: Fit = cls.fit(checkpoint, {**section, **loading.config_of(component.dotted, link, section)})
    except errors.LoadError as error:
        _torch_is_there(error)
        return Unknown(str(error), about)
    except Exception as error:  # a component can raise anything
        _torch_is_there(error)
        return Unknown(f"`{component.dotted}.fit` failed: {errors.describe(error)}", "class")
    return fit


def _torch_is_there(error: BaseException | None) -> None:
    """Raises Failure if an error comes of torch not being installed."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise Failure(
                "the shapes of parameters need the package `torch`, which is not installed",
                help="pip install 'mstarc[runtime]'",
            ) from None
        error = error.__cause__


__all__ = ["Judged", "judge"]
