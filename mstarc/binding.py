"""The binding file `X.yaml` beside `X.walk`: what Python, weights and numbers a model is bound to.

Takes the text of the file; gives a `Binding`, or coded findings with lines. `check_binding` holds it against the program, and
`with_config` puts its numbers into the program, so that checks see the published defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from mstarc.binding_file import BINDING, Binding
from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label, Rule
from mstarc.ir.core import ForParts, Loop, Program
from mstarc.ir.types import Expr, ListOf, Lit, Scalar
from mstarc.ir.visit import every_op
from mstarc.passes.lower.known import Given
from mstarc.shapes import Path, Problem
from mstarc.source import SourceFile, Span
from mstarc.yaml_tree import NotTaken, read_tree


@dataclass(frozen=True, slots=True)
class Bound:
    """A binding with the place of each of its keys, by path (`("components", "llm")`)."""

    binding: Binding
    source: SourceFile
    places: Mapping[Path, Span]

    def place(self, path: Path) -> Span:
        """The span of a key, or of the nearest key around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Span(self.source.path, 0, 0))

    def label(self, path: Path) -> tuple[Label, ...]:
        """A label at a key, if it is there."""
        return (Label(self.places[path], f"`{path[-1]}` is here"),) if path in self.places else ()


# ------------------------------------------------------------------------------------------------------------- reading


def read_binding(source: SourceFile, report: Collector) -> Bound | None:
    """The binding, or None after findings MC901, MC902, MC906."""
    try:
        tree = read_tree(source.text)
    except NotTaken as error:
        where = Span(source.path, 0, 0) if error.at is None else _span(source, error.at, error.at + 1)
        report.report(rules.MC906, f"the binding file {error}", where)
        return None
    content = {} if tree.content is None else tree.content
    if not isinstance(content, dict):
        report.report(rules.MC906, "the binding file is not a mapping", Span(source.path, 0, 1))
        return None
    problems: list[Problem] = []
    binding = BINDING({key: {} if value is None else value for key, value in content.items()}, (), problems)
    places = {path: _span(source, *place) for path, place in tree.places.items()}
    if not problems:
        return Bound(binding, source, places)
    bound = Bound(Binding(), source, places)
    for problem in problems:
        _report_problem(bound, problem, report)
    return None


def _span(source: SourceFile, start: int, stop: int) -> Span:
    """A span from character positions."""
    before = len(source.text[:start].encode())
    return Span(source.path, before, before + len(source.text[start:stop].encode()))


def _report_problem(bound: Bound, problem: Problem, report: Collector) -> None:
    """An unknown key (MC901) or a value of a wrong kind (MC902)."""
    path = problem.path
    place = bound.place(path)
    if problem.known:
        near = nearest(path[-1], problem.known)
        help_text = f"did you mean `{near}`?" if near else "known keys: " + ", ".join(f"`{k}`" for k in problem.known)
        where = f"`{'.'.join(path[:-1])}`" if path[:-1] else "the binding file"
        report.report(rules.MC901, f"unknown key `{path[-1]}` in {where}", place, subject=path[-1], help=help_text)
        return
    named = ".".join(path)
    report.report(rules.MC902, f"`{named}` {problem.what}", place, subject=named)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is nearest to this one, or ""."""
    from difflib import get_close_matches  # only a finding needs it

    close = get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return close[0] if close else ""


# ------------------------------------------------------------------------------------------------ against the program


def check_binding(bound: Bound, program: Program, report: Collector) -> None:
    """MC903 not bound, MC904 bound but not declared, MC905 config without a value, MC907 unknown checkpoint."""
    binding = bound.binding
    nodes = {n.name: n.span for n in program.nodes}
    externs = {e.name: e.span for e in program.externs}
    _match("node", "components", nodes, binding.components, bound, report)
    _match("extern", "externs", externs, binding.externs, bound, report)
    _match_outputs(bound, program, report)
    _match_costs(bound, program, report)
    for config in program.configs:
        if config.path and binding.value(config.path) is None:
            _missing_config(config.name, config.path, config.span, bound, report)
    for node, component in binding.components.items():
        if component.checkpoint is None or component.checkpoint in binding.checkpoints:
            continue
        near = nearest(component.checkpoint, binding.checkpoints)
        report.report(
            rules.MC907,
            f"component `{node}` loads checkpoint `{component.checkpoint}`, which is not declared",
            bound.place(("components", node, "checkpoint")),
            subject=component.checkpoint,
            help=f"did you mean `{near}`?" if near else "declare it under `checkpoints`",
        )


def _match(
    kind: str, section: str, declared: Mapping[str, Span], given: Iterable[str], bound: Bound, report: Collector
) -> None:
    given = list(given)
    for name, span in declared.items():
        if name not in given:
            message = f"{kind} `{name}` is not bound in {bound.source.path}"
            help_text = f"add `{name}: package.module.Name` under `{section}`"
            second = bound.label((section,))
            _finding(report, rules.MC903, message, span, name, help_text, second)
    for name in given:
        if name not in declared:
            message = f"`{section}.{name}` binds a {kind} that the model does not declare"
            near = nearest(name, declared)
            _finding(
                report,
                rules.MC904,
                message,
                bound.place((section, name)),
                name,
                f"did you mean `{near}`?" if near else None,
            )


def _match_outputs(bound: Bound, program: Program, report: Collector) -> None:
    """Modalities that some request emits, and the request and input of `chat`."""
    emitted = sorted({modality for request in program.requests for modality, _ in request.outputs})
    for modality in bound.binding.modalities:
        if modality not in emitted:
            _stranger(
                "modalities",
                modality,
                "a modality that no request emits",
                emitted,
                ("modalities", modality),
                bound,
                report,
            )
    _match_served(bound, program, report)
    chat = bound.binding.chat
    if chat is None:
        return
    requests = {r.name: [v.name for v in r.inputs] for r in program.requests}
    if chat.request not in requests:
        _stranger("chat.request", chat.request, "no request of the model", requests, ("chat", "request"), bound, report)
    elif chat.input not in requests[chat.request]:
        inputs = requests[chat.request]
        _stranger("chat.input", chat.input, f"no input of `{chat.request}`", inputs, ("chat", "input"), bound, report)


def _match_served(bound: Bound, program: Program, report: Collector) -> None:
    """The loops, contexts, requests, inputs and params that the served modalities name."""
    loops = [f"{w.name}.{op.label}" for w in program.walks for op in every_op(w.body) if isinstance(op, Loop)]
    contexts = [context.name for context in program.contexts]
    params = [param.name for param in program.params]
    texts = {r.name: [v.name for v in r.inputs if v.type == Scalar("text")] for r in program.requests}
    for modality, given in bound.binding.modalities.items():
        giving = [r.name for r in program.requests if modality in dict(r.outputs)]
        known = {
            "finish": ("no loop of the model (walk.loop)", loops),
            "usage": ("no context of the model", contexts),
            "voice": ("no param of the model", params),
            "request": (f"no request that gives {modality}", giving),
            "input": (f"no text that request `{given.get('request')}` takes", texts.get(given.get("request"), [])),
        }
        for key, (what, names) in known.items():
            if key in given and given[key] not in names and (key != "input" or given.get("request") in giving):
                path = ("modalities", modality, key)
                _stranger(".".join(path), given[key], what, names, path, bound, report)


def _match_costs(bound: Bound, program: Program, report: Collector) -> None:
    """Nodes, ops, results of externs and parts that the `cost` section names."""
    cost = bound.binding.cost
    ops = {node.name: [op.name for op in node.ops] for node in program.nodes}
    lists = (op for request in program.requests for op in every_op(request.body) if isinstance(op, ForParts))
    parts = sorted({case.kind for loop in lists for case in loop.cases})
    results = [f"{extern.name}.{port.name}" for extern in program.externs for port in extern.results]
    named = [("parts", name, "no part that a request tells apart", parts) for name in cost.parts]
    named += [("values", name, "no result of an extern", results) for name in cost.values]
    named += [("nodes", name, "no node of the model", list(ops)) for name in cost.nodes]
    for section, name, what, known in named:
        if name not in known:
            _stranger(f"cost.{section}", name, what, known, ("cost", section, name), bound, report)
    for node, given in cost.nodes.items():
        for op in given.ops:
            if op not in ops.get(node, [op]):
                path = ("cost", "nodes", node, "ops", op)
                _stranger(f"cost.nodes.{node}.ops", op, f"no op of `{node}`", ops[node], path, bound, report)


def _stranger(
    key: str, name: str, what: str, known: Iterable[str], path: Path, bound: Bound, report: Collector
) -> None:
    near = nearest(name, known)
    help_text = f"did you mean `{near}`?" if near else None
    _finding(report, rules.MC904, f"`{key}` names `{name}`, which is {what}", bound.place(path), name, help_text)


def _finding(
    report: Collector,
    rule: Rule,
    message: str,
    span: Span,
    subject: str,
    help_text: str | None,
    secondary: tuple[Label, ...] = (),
) -> None:
    report.report(rule, message, span, secondary=secondary, subject=subject, help=help_text)


def _missing_config(name: str, path: str, span: Span, bound: Bound, report: Collector) -> None:
    section, _, key = path.partition(".")
    known = bound.binding.config
    if section in known:
        near = nearest(key, known[section])
        help_text = f"did you mean `{section}.{near}`?" if near else f"add `{key}` to section `{section}` of `config`"
    else:
        near = nearest(section, known)
        help_text = f"did you mean section `{near}`?" if near else f"add `{section}: {{{key}: ...}}` under `config`"
    second = bound.label(("config", section)) or bound.label(("config",))
    message = f"config `{name}` reads `{path}`, which {bound.source.path} does not give"
    _finding(report, rules.MC905, message, span, path, help_text, second)


def values_given(bound: Bound) -> dict[str, Given]:
    """Config path -> its value, and the name of the file that gives it."""
    by = PurePath(bound.source.path).name
    return {
        f"{section}.{key}": Given(value, by)
        for section, values in bound.binding.config.items()
        for key, value in values.items()
    }


def with_config(program: Program, binding: Binding) -> Program:
    """The program with the binding's numbers as the values of its configs."""
    configs = []
    for config in program.configs:
        value = binding.value(config.path) if config.path else None
        configs.append(config if value is None else replace(config, expr=literal_of(value)))
    return replace(program, configs=tuple(configs))


def literal_of(value: Any) -> Expr:
    """A config value as an expression."""
    return ListOf(tuple(literal_of(v) for v in value)) if isinstance(value, list) else Lit(value)
