"""The binding file `X.yaml` beside `X.walk`: what Python, weights and numbers a model is bound to.

Takes the text of the file; gives a `Binding`, or coded findings with lines. `check_binding` holds it against the program, and
`with_config` puts its numbers into the program, so that checks see the published defaults.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import CollectionStartEvent
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label, Rule
from mstarc.ir.core import ForParts, Program
from mstarc.ir.types import Expr, ListOf, Lit
from mstarc.ir.visit import every_op
from mstarc.plan.cost_table import Cost, NodeCost, OpCost
from mstarc.source import SourceFile, Span

DEEPEST = 40  # levels of a binding file
Path: TypeAlias = tuple[str, ...]
DottedPath = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]


def _plain_value(value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    for item in items:
        if isinstance(item, list):
            _plain_value(item)
        elif not isinstance(item, (bool, int, float, str)):
            raise ValueError("is neither a number, a text, a bool nor a list of these")
        elif isinstance(item, float) and not math.isfinite(item):
            raise ValueError("is not a finite number")
        elif isinstance(item, int) and not -(2**63) <= item < 2**63:
            raise ValueError("does not fit into 64 bits")
    return value


def _plain_tree(value: Any) -> Any:
    """The same with mappings by text, and nulls."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("has a key that is not text")
        for item in value.values():
            _plain_tree(item)
    elif isinstance(value, list):
        for item in value:
            _plain_tree(item)
    elif value is not None:
        _plain_value(value)
    return value


Value = Annotated[Any, AfterValidator(_plain_value)]
Tree = Annotated[Any, AfterValidator(_plain_tree)]

_MODEL = ConfigDict(strict=True, extra="forbid", frozen=True, populate_by_name=True)


class Checkpoint(BaseModel):
    """Weights: a file inside an installed package, or a path. `sha256` of the file, if it is to be checked."""

    model_config = _MODEL

    package: str | None = None
    path: str | None = None
    file: str | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Checkpoint:
        if (self.package is None) == (self.path is None):
            raise ValueError("has exactly one of `package` and `path`")
        return self


class Component(BaseModel):
    """A node's class, and the checkpoint that its weights come from. A bare dotted path is the class alone."""

    model_config = _MODEL

    dotted: DottedPath = Field(alias="class")
    checkpoint: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, given: Any) -> Any:
        return {"class": given} if isinstance(given, str) else given


class Chat(BaseModel):
    """Which request the chat endpoint runs, which of its inputs takes the messages, and whether these may hold audio."""

    model_config = _MODEL

    request: str
    input: str
    audio_input: bool = False


class Binding(BaseModel):
    """One binding file."""

    model_config = _MODEL

    config: dict[str, dict[str, Value]] = {}
    checkpoints: dict[str, Checkpoint] = {}
    components: dict[str, Component] = {}
    externs: dict[str, DottedPath] = {}
    modalities: dict[str, Tree] = {}
    chat: Chat | None = None
    cost: Cost = Cost()

    def value(self, path: str) -> Value | None:
        """The config value at `section.key`."""
        section, _, key = path.partition(".")
        return self.config.get(section, {}).get(key)


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
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    try:
        root = yaml.compose(io.StringIO(source.text))
        bad = None if root is None else _unusable(root)
        if bad is not None:
            message, node = bad
            where = _span(source, node.start_mark.index, node.start_mark.index + 1)
            report.report(rules.MC906, f"the binding file {message}", where)
            return None
        content = None if root is None else yaml.constructor.construct_document(root)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = _span(source, mark.index, mark.index + 1) if mark else Span(source.path, 0, 0)
        report.report(
            rules.MC906,
            f"the binding file is not YAML: {_first_line(error.problem or error.context).split(' with value')[0]}",
            where,
        )
        return None
    except RecursionError:
        report.report(rules.MC906, "the binding file is nested too deeply", Span(source.path, 0, 0))
        return None
    except (YAMLError, ValueError) as error:
        report.report(rules.MC906, f"the binding file is not YAML: {_first_line(str(error))}", Span(source.path, 0, 0))
        return None
    places = dict(_places(root, source, ())) if root is not None else {}
    content = {} if content is None else content
    if not isinstance(content, dict):
        report.report(rules.MC906, "the binding file is not a mapping", Span(source.path, 0, 1))
        return None
    try:
        return Bound(Binding.model_validate(_without_nulls(content)), source, places)
    except ValidationError as error:
        bound = Bound(Binding(), source, places)
        for problem in error.errors():
            _report_problem(bound, problem["type"], tuple(problem["loc"]), problem["msg"], report)
        return None


class _Composer(Composer):
    """Raises RecursionError where collections are nested deeper than DEEPEST."""

    _levels = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self._levels += 1
        if self._levels > DEEPEST and self.parser.check_event(CollectionStartEvent):
            raise RecursionError
        try:
            return super().compose_node(parent, index)
        finally:
            self._levels -= 1


def _unusable(root: Node) -> tuple[str, Node] | None:
    """YAML that is not taken, and where: aliases (they can stand for endless or for huge values) and half surrogate pairs."""
    seen: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            return "uses an anchor twice: write the value out", node
        seen.add(id(node))
        if isinstance(node, MappingNode):
            todo += [item for pair in node.value for item in pair]
        elif isinstance(node, SequenceNode):
            todo += node.value
        elif any("\ud800" <= character <= "\udfff" for character in str(node.value)):
            return "holds text that is not valid Unicode", node
    return None


def _without_nulls(content: dict[Any, Any]) -> dict[Any, Any]:
    """A section that is left empty is an empty section."""
    return {key: {} if value is None else value for key, value in content.items()}


def _first_line(text: str | None) -> str:
    return (text or "no reason is given").strip().splitlines()[0]


def _places(node: Node, source: SourceFile, path: Path) -> Iterator[tuple[Path, Span]]:
    """Each key's path and span."""
    if isinstance(node, MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            yield here, _span(source, key.start_mark.index, key.end_mark.index)
            yield from _places(value, source, here)
    elif isinstance(node, SequenceNode):
        for position, value in enumerate(node.value):
            here = (*path, str(position))
            yield here, _span(source, value.start_mark.index, value.end_mark.index)
            yield from _places(value, source, here)


def _span(source: SourceFile, start: int, stop: int) -> Span:
    """A span from character positions."""
    before = len(source.text[:start].encode())
    return Span(source.path, before, before + len(source.text[start:stop].encode()))


def _report_problem(bound: Bound, kind: str, loc: tuple[int | str, ...], text: str, report: Collector) -> None:
    """One pydantic error as a finding: an unknown key (MC901) or a value of a wrong kind (MC902)."""
    path = tuple(str(part) for part in loc)
    place = bound.place(path)
    if kind == "extra_forbidden":
        known = _keys_at(path)
        near = nearest(path[-1], known)
        help_text = f"did you mean `{near}`?" if near else "known keys: " + ", ".join(f"`{k}`" for k in known)
        message = f"unknown key `{path[-1]}` in {_where(path[:-1])}"
        report.report(rules.MC901, message, place, subject=path[-1], help=help_text)
        return
    named = ".".join(path)
    report.report(rules.MC902, f"`{named}` {_plain(kind, text)}", place, subject=named)


def _keys_at(path: Path) -> list[str]:
    if len(path) == 1:
        return [f.alias or name for name, f in Binding.model_fields.items()]
    models: dict[str, type[BaseModel]] = {"checkpoints": Checkpoint, "chat": Chat}
    model = models.get(path[0], Component)
    if path[0] == "cost":
        model = OpCost if "ops" in path[:-1] else NodeCost if "nodes" in path[:-1] else Cost
    return [f.alias or name for name, f in model.model_fields.items()]


def _where(path: Path) -> str:
    return f"`{'.'.join(path)}`" if path else "the binding file"


_WORDS = {
    "string_type": "is not text",
    "string_pattern_mismatch": "does not have the form that its key asks for",
    "dict_type": "is not a mapping",
    "missing": "is missing",
    "model_type": "is not a mapping",
}


def _plain(kind: str, text: str) -> str:
    """A pydantic message in the words of the rest."""
    if kind == "string_pattern_mismatch":
        return "is not a dotted Python path" if "A-Za-z_" in text else "is not a sha256 in 64 hex digits"
    if kind == "value_error":
        return text.removeprefix("Value error, ")
    return _WORDS.get(kind, text[:1].lower() + text[1:])


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is nearest to this one, or ""."""
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
    chat = bound.binding.chat
    if chat is None:
        return
    requests = {r.name: [v.name for v in r.inputs] for r in program.requests}
    if chat.request not in requests:
        _stranger("chat.request", chat.request, "no request of the model", requests, ("chat", "request"), bound, report)
    elif chat.input not in requests[chat.request]:
        inputs = requests[chat.request]
        _stranger("chat.input", chat.input, f"no input of `{chat.request}`", inputs, ("chat", "input"), bound, report)


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


def with_config(program: Program, binding: Binding) -> Program:
    """The program with the binding's numbers as the values of its configs."""
    configs = []
    for config in program.configs:
        value = binding.value(config.path) if config.path else None
        configs.append(config if value is None else replace(config, expr=literal_of(value)))
    return replace(program, configs=tuple(configs))


def literal_of(value: Value) -> Expr:
    """A config value as an expression."""
    return ListOf(tuple(literal_of(v) for v in value)) if isinstance(value, list) else Lit(value)
