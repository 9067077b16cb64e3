"""`mstarc run` and `mstarc call`: link a package and hand it to the runtime. The runtime is imported here, and only then."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstarc.cli.guard import FINDINGS, Failure
from mstarc.cli.packages import import_from_here, link_package, undamaged
from mstarc.cli.values import BINARY, LIST, given_params, pairs, typed_values

if TYPE_CHECKING:
    from mstarc_runtime.abi.linked import Linked
    from mstarc_runtime.program import ConductorProgram, Input


@dataclass(frozen=True, slots=True)
class OneCall:
    """The arguments of one `call`. `extra`: what was left on the command line, params of the model."""

    folder: str
    text: str | None = None
    audio: Path | None = None
    output: Path | None = None
    params: Sequence[str] = ()
    inputs: Sequence[str] = ()
    wants: Sequence[str] = ()
    placement: str | None = None
    checkpoints: Sequence[str] = ()
    request: str | None = None
    seed: int | None = None
    deadline: float | None = None
    extra: Sequence[str] = ()


def run_server(
    folder: str, placement: str | None, checkpoints: Sequence[str], host: str, port: int, deadline: float | None
) -> int:
    """Serve until a signal comes."""
    linked = with_threads(link_package(folder, placement, pairs(checkpoints, "--checkpoint")).linked, cores())
    serving = runtime_module("mstarc_runtime.serving.cli")
    options: dict[str, Any] = {} if deadline is None else {"deadline_s": deadline}
    return int(serving.run_server(linked, host, port, **options))


def run_call(call: OneCall) -> int:
    """Run one request: the answer to stdout, audio to a file, the times to stderr."""
    checkpoints = pairs(call.checkpoints, "--checkpoint")
    linked = with_threads(link_package(call.folder, call.placement, checkpoints).linked, cores())
    serving = runtime_module("mstarc_runtime.serving.cli")
    with undamaged(Path(call.folder)):
        program = _conductor(linked)
        kinds = input_kinds(program, call.request)
        params = call_params(call, program)
    options: dict[str, Any] = {} if call.deadline is None else {"deadline_s": call.deadline}
    return int(
        serving.call_once(
            linked,
            inputs=typed_values(pairs(call.inputs, "--input"), kinds, "--input"),
            params=params,
            wants=set(call.wants),
            output=call.output,
            request=call.request,
            text=call.text,
            audio=call.audio,
            seed=call.seed,
            **options,
        )
    )


def call_params(call: OneCall, program: ConductorProgram) -> dict[str, Any]:
    """The params that the command line gives."""
    return given_params(call.params, call.extra, {param.name: param.kind for param in program.PARAMS})


def input_kinds(program: ConductorProgram, request: str | None) -> dict[str, str]:
    """The kind of each input of a request, or of all requests if none is named; `list:image` for a list of one medium."""
    entries = [entry for entry in program.ENTRIES if request in (None, entry.name)]
    return {item.name: _kind(item) for entry in entries for item in entry.inputs}


def _kind(item: Input) -> str:
    one = item.members[0] if item.kind == "parts" and len(item.members) == 1 else ""
    return f"{LIST}{one}" if one in BINARY else item.kind


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def with_threads(linked: Linked, cores: int) -> Linked:
    """Ranks whose placement says nothing of threads share the cores that are left; one core is kept for the conductor."""
    from msgspec.structs import replace

    unsaid = [rank.rank for rank in linked.ranks if rank.threads == 0]
    if not unsaid:
        return linked
    left = cores - 1 - sum(rank.threads for rank in linked.ranks)
    each, over = divmod(max(left, len(unsaid)), len(unsaid))
    more = set(unsaid[:over])
    ranks = [r if r.threads else replace(r, threads=each + (r.rank in more)) for r in linked.ranks]
    return replace(linked, ranks=ranks)


def runtime_module(name: str) -> Any:
    """A module of the runtime. Raises Failure if what it needs is not installed."""
    import_from_here()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "mstarc_runtime":
            raise
        raise Failure(
            f"the runtime needs the package `{error.name}`, which is not installed",
            FINDINGS,
            help="pip install 'mstarc[runtime]'",
        ) from None


def _conductor(linked: Linked) -> ConductorProgram:
    from mstarc_runtime.errors import LoadError
    from mstarc_runtime.package import load_conductor

    try:
        return load_conductor(linked)
    except LoadError as error:
        raise Failure(str(error)) from None
