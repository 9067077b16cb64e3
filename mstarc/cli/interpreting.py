"""`mstarc interpret`: one request on the reference interpreter, with hashes for weights. Takes a spec; prints what it would emit.

The values are those of a machine whose every op is a hash of its arguments: what they show is order, lengths, ends and counts, which
are the same on the real weights only where these do not decide.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from mstarc.cli.checking import single_model
from mstarc.cli.findings import write_checked
from mstarc.cli.guard import FINDINGS, INTERNAL, OK, USAGE, Failure
from mstarc.cli.values import given_params, pairs, typed_values
from mstarc.interp import Emitted, HashMachine, Outcome, interpret
from mstarc.interp.errors import Deadlock, ExecutionError, RequestRefused
from mstarc.interp.hash_machine import Box, Row, digest
from mstarc.ir.core import Program, Value
from mstarc.ir.declarations import Param
from mstarc.ir.types import Media, Parts, Scalar, Tensor
from mstarc.workspace import Model, load_model


@dataclass(frozen=True, slots=True)
class InterpretCall:
    """The arguments of one `interpret`. `extra`: what was left on the command line, params of the model."""

    path: str
    request: str = ""
    inputs: Sequence[str] = ()
    params: Sequence[str] = ()
    wants: Sequence[str] = ()
    seed: int = 0
    order: int | None = None
    format: str = "text"
    extra: Sequence[str] = ()


def checked_model(path: str) -> tuple[Model, int]:
    """The model of a spec and what checking it says: 0, 1 or 70. Its findings are written."""
    model = load_model(single_model(path))
    write_checked(model.checked)
    status = model.checked.exit_code()
    return model, status if status == INTERNAL else FINDINGS if model.failed else OK


def run_interpret(call: InterpretCall) -> int:
    """Run it and print the events. 1: the model has errors, or the request failed; 2: the request is refused."""
    model, status = checked_model(call.path)
    if status != OK or model.program is None:
        return status or FINDINGS
    program = model.program
    inputs = _inputs(program, call)
    machine = HashMachine(program, config=model.binding.config if model.binding else {})
    params = given_params(call.params, call.extra, {param.name: _param_kind(param) for param in program.params})
    try:
        out = interpret(
            program,
            machine,
            inputs,
            request=call.request,
            params=params,
            wants=call.wants or None,
            seed=call.seed,
            order=call.order,
        )
    except RequestRefused as error:
        raise Failure(str(error), USAGE) from None
    except (Deadlock, ExecutionError) as error:
        raise Failure(str(error)) from None
    sys.stdout.write(_json(out) if call.format == "json" else _text(out))
    return OK


# -------------------------------------------------------------------------------------------------------------- inputs


def _inputs(program: Program, call: InterpretCall) -> dict[str, Any]:
    """The inputs as the hash machine takes them. An unknown name is left for the interpreter to refuse."""
    requests = [r for r in program.requests if call.request in ("", r.name)]
    declared = {value.name: value for value in requests[0].inputs} if len(requests) == 1 else {}
    outputs = [name for name, _ in requests[0].outputs] if len(requests) == 1 else list(call.wants)
    for name in call.wants:
        if name not in outputs:
            raise Failure(f"request `{requests[0].name}` gives {', '.join(outputs)}, not `{name}`", USAGE)
    kinds = {name: _kind(value) for name, value in declared.items()}
    given = typed_values(pairs(call.inputs, "--input"), kinds, "--input")
    return {name: _value(declared[name], value) if name in declared else value for name, value in given.items()}


def _param_kind(param: Param) -> str:
    return param.type.name if isinstance(param.type, Scalar) else "enum"


def _kind(value: Value) -> str:
    match value.type:
        case Scalar(name):
            return name
        case Media(modality):
            return modality
        case _:
            return ""


def _value(declared: Value, given: Any) -> Any:
    """A value of the command line as the machine takes it. What is not of the type is left for the interpreter to refuse."""
    match declared.type:
        case Media():
            return Box(digest(given.hex()), (3,))
        case Tensor():
            return _rows(given)
        case Parts():
            return [_part(part) for part in given] if isinstance(given, list) else [_part(given)]
        case Scalar("float") if isinstance(given, int) and not isinstance(given, bool):
            return float(given)
        case _:
            return given


def _rows(given: Any) -> Any:
    """Nested lists, or the array of a .npy file, as the machine's rows."""
    given = given.tolist() if hasattr(given, "tolist") else given
    return Row(map(_rows, given)) if isinstance(given, list) else given


def _part(given: Any) -> SimpleNamespace:
    """A part of a message: an object with its `kind`, or a text of the user."""
    if isinstance(given, Mapping) and isinstance(given.get("kind"), str):
        return SimpleNamespace(**{str(name): value for name, value in given.items()})
    if isinstance(given, str):
        return SimpleNamespace(kind="text", role="user", text=given)
    raise Failure(f"a part is a text or an object with `kind`, not {json.dumps(given)}", USAGE)


# -------------------------------------------------------------------------------------------------------------- output


def _text(out: Outcome) -> str:
    lines = []
    width = max((len(event.modality) for event in out.events), default=0)
    wide = max((len(event.walk) for event in out.events), default=0)
    for event in out.events:
        attrs = "".join(f"  {name}={value}" for name, value in event.attrs.items())
        lines.append(f"{event.modality:<{width}}  {event.walk:<{wide}}  {_shown(event.value)}{attrs}")
    lines.append("")
    lines += [f"{count} {modality}" for modality, count in _counts(out.events).items()]
    lines += [
        f"loop {name} ended by {'its `stop`' if cause == 'stop' else 'its bound'}" for name, cause in out.causes.items()
    ]
    lines += [f"context {name} holds {entries} entries" for name, (entries, _) in out.contexts.items()]
    lines += [f"stream {name}: {items} items were taken by no one" for name, items in out.discarded.items()]
    return "\n".join(lines) + "\n"


def _counts(events: Iterable[Emitted]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for event in events:
        counts[event.modality] = counts.get(event.modality, 0) + 1
    return counts


def _shown(value: Any) -> str:
    if isinstance(value, Box):
        return f"[{', '.join(map(str, value.shape))}] #{value.key & 0xFFFFFFFF:08x}"
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _json(out: Outcome) -> str:
    document = {
        "version": 1,
        "events": [
            {"modality": e.modality, "walk": e.walk, "value": _plain(e.value), "attributes": _plain(e.attrs)}
            for e in out.events
        ],
        "causes": dict(out.causes),
        "finish_reason": out.finish_reason,
        "contexts": {name: {"entries": n, "position": p} for name, (n, p) in out.contexts.items()},
        "draws": {name: list(ids) for name, ids in out.draws.items()},
        "discarded": dict(out.discarded),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Box):
        return {"shape": list(value.shape), "hash": f"{value.key:016x}"}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


__all__ = ["InterpretCall", "checked_model", "run_interpret"]
