"""The models of the soak test: small ones with reference weights, each behind a real server on worker processes of its own."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from msgspec.structs import replace

from mstarc.cli.packages import link_package
from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.cache.pool import PAGE_SIZE
from mstarc_runtime.conductor.admission import Needs, dry_run
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.processes import ProcessCluster
from mstarc_runtime.package import load_conductor
from mstarc_runtime.serving.app import make_app
from mstarc_runtime.serving.server import address, listen, serve
from mstarc_runtime.serving.service import Options, Service
from mstarc_runtime.serving.walks import read_inputs
from tests.e2e import orpheus_parts as orpheus
from tests.e2e.harness import HELLO, ROOT
from tests.e2e.shipped import GOLDENS, linked
from tests.models.vjepa2_cases import Cases
from tests.serving.pi05 import letters
from tests.serving.robot import packed

TOLERANCE = 1e-3  # of floats, relative to the largest: a batch sums in another order, and a rollout carries it on
SPLIT = (
    'default = 0\n[ranks.0]\ndevice = "cpu"\nthreads = 1\n[ranks.1]\ndevice = "cpu"\nthreads = 1\n[place]\nadder = 1\n'
)
_ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "runtime")])}


@dataclass(slots=True)
class Case:
    """One request, and what it gives: events of all modalities in their order, by modality. Filled in before the chaos begins."""

    request: str
    inputs: Mapping[str, Any]
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    wanted: dict[str, list[Any]] = field(default_factory=dict)

    def body(self, stream: bool) -> bytes:
        """The request as msgpack of `/v1/walks/<request>`."""
        asked = {"inputs": dict(self.inputs), "params": dict(self.params), "seed": self.seed, "stream": stream}
        return packed(asked)

    def difference(self, found: Mapping[str, list[Any]], whole: bool) -> str:
        """In words, how events differ from those that are wanted; "" if they do not. Of a part of them, from the first ones."""
        for modality in self.wanted.keys() | found.keys():
            got, wanted = found.get(modality, []), self.wanted.get(modality, [])
            if len(got) > len(wanted) or (whole and len(got) < len(wanted)):
                return f"{len(got)} events of {modality}, {len(wanted)} are right"
            for k, (mine, right) in enumerate(zip(got, wanted, strict=False)):
                if not _same(np.asarray(mine), np.asarray(right)):
                    return f"event {k} of {modality} is wrong"
        return ""


def _same(got: Any, wanted: Any) -> bool:
    if got.shape != wanted.shape or got.dtype.kind != wanted.dtype.kind:
        return False
    if got.dtype.kind != "f":
        return bool(np.array_equal(got, wanted))
    return bool(np.abs(got - wanted).max(initial=0) <= TOLERANCE * np.abs(wanted).max(initial=1e-6))


@dataclass(slots=True)
class Member:
    """A model that runs: its engine, its address, its cases."""

    name: str
    engine: Engine
    url: str
    app: Any  # the application once more, for sockets in this process
    cases: list[Case]
    stop: asyncio.Event
    serving: asyncio.Task[int]


class Ids:
    """In place of the codec: the samples of a window begin with its 28 ids, each exact in 16 bits."""

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Ids:
        return cls()

    def decode(self, noise: Any, ids: Any) -> Any:
        import torch

        return torch.nn.functional.pad(ids.float() / 1024, (0, 2048 - 28))


def hello(folder: Path) -> tuple[Linked, list[Case]]:
    (folder / "hello.toml").write_text(SPLIT)
    program = link_package(str(HELLO), str(folder / "hello.toml")).linked
    return program, [Case("sums", {"start": k}, {"max_steps": 5 + 30 * k}) for k in range(4)]


def orpheus_lm(folder: Path) -> tuple[Linked, list[Case]]:
    """The tiny language model on one rank; a codec on the other that writes the ids of its windows down. Greedy and drawn."""
    made = folder / "orpheus"
    made.mkdir()
    program = orpheus.heard_from(orpheus.linked(made, 2, snac=Ids), 0, 10**6)
    prompts = [" ".join(map(str, orpheus.TENSORS[f"lm.{n}.input_ids"].tolist())) for n in range(3)]
    greedy = {"temperature": 0.0, "repetition_penalty": 1.3}
    drawn = {"temperature": 0.7, "top_p": 0.9}
    cases = [Case("speech", {"text": each}, {"max_tokens": 42, **greedy}) for each in prompts]
    return program, [*cases, Case("speech", {"text": prompts[0]}, {"max_tokens": 60, **drawn}, seed=5)]


def pi05(folder: Path) -> tuple[Linked, list[Case]]:
    (folder / "pi05").mkdir()
    program = linked("pi05", {"pi05": GOLDENS / "pi05", "tokenizer": letters(folder / "pi05")})
    pictures = [Cases("pi05").tensor("image_preprocess", f"image_u8_{k}").numpy() for k in (0, 1, 0)]
    return program, [
        Case("act", {"images": pictures[:n], "task": task, "state": [-0.5, 0.5]}, {"flow_steps": steps}, seed=n)
        for n, task, steps in ((1, "open", 10), (2, "fold it", 5), (3, "pick", 10))
    ]


def vjepa2_ac(folder: Path) -> tuple[Linked, list[Case]]:
    program = linked("vjepa2_ac", {"vjepa2_ac": GOLDENS / "vjepa2_ac"})
    golden = Cases("vjepa2_ac")
    video = golden.tensor("encode_frames", "clip")[0].transpose(0, 1).numpy()
    case = "rollout_h8"
    inputs = {name: golden.tensor(case, name)[0].numpy() for name in ("actions",)}
    inputs |= {"states": golden.tensor(case, "pose")[0].numpy(), "video": video[:1]}
    plan = {
        "actions": golden.tensor("plan_k3_h2", "actions").numpy(),
        "goal": golden.tensor("plan_k3_h2", "goal")[0].numpy(),
    }
    return program, [
        Case("rollout", inputs, {"horizon": 8, "live": True}),
        Case("rollout", inputs, {"horizon": 4}),
        Case("features", {"video": video}),
        Case("plan", {**inputs, **plan}),
    ]


def whisper(folder: Path) -> tuple[Linked, list[Case]]:
    from safetensors.numpy import load_file

    program = linked("whisper", {"whisper": GOLDENS / "whisper"})
    speech = load_file(GOLDENS / "whisper" / "cases.safetensors")["mel.waveform"]
    return program, [
        Case("transcribe", {"speech": speech}, {"language": "en"}),
        Case("transcribe", {"speech": speech[:16000]}, {"language": "en"}),
        Case("transcribe", {"speech": speech}, {"language": "de", "task": "translate"}),
    ]


MODELS: dict[str, Callable[[Path], tuple[Linked, list[Case]]]] = {
    "hello": hello, "orpheus": orpheus_lm, "pi05": pi05, "vjepa2_ac": vjepa2_ac, "whisper": whisper
}  # fmt: skip


def tight(program: Linked, cases: list[Case]) -> Linked:
    """The program with KV pools that hold the largest of the cases alone, and room on the host for all."""
    engine = Engine(program, load_conductor(program), ProcessCluster(program))
    homes = {context.name: context.cache for context in program.contexts}
    limits = {context.name: context.max for context in program.contexts}
    pages: Counter[str] = Counter()
    for case in cases:
        inputs = read_inputs(engine.entries[case.request], dict(case.inputs))
        request, needs = engine.checked(case.request, inputs, case.params, frozenset()), Needs(limits, frozenset())
        dry_run(request, needs, engine.program)
        wanted: Counter[str] = Counter()
        for context, entries in needs.peak.items():
            wanted[homes[context]] += -(-entries // PAGE_SIZE)
        pages |= wanted
    caches = [replace(cache, pages=pages[cache.name], swap=8 * pages[cache.name]) for cache in program.caches]
    return replace(program, caches=caches)


@asynccontextmanager
async def fleet(names: list[str], folder: Path, full: bool = False) -> AsyncIterator[list[Member]]:
    """The members, ready, with what their cases give alone; at the end their servers must end in order. `full`: pools are `tight`."""
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(_member(name, folder, full)) for name in names]
        async with asyncio.timeout(240):
            await asyncio.gather(*[_ready(member) for member in members])
            for member in members:
                for case in member.cases:
                    case.wanted = await _alone(member, case)
        yield members


@asynccontextmanager
async def _member(name: str, folder: Path, full: bool) -> AsyncIterator[Member]:
    program, cases = MODELS[name](folder)
    program = tight(program, cases) if full else program
    ranks = [replace(rank, threads=1) for rank in program.ranks]
    program = replace(program, ranks=ranks)
    engine = Engine(program, load_conductor(program), ProcessCluster(program, env=_ENVIRONMENT))
    listener, stop = listen("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(serve(engine, listener, Options(grace_s=2.0, deadline_s=60.0), stop, asyncio.Event()))
    try:
        app = make_app(Service(engine, Options(deadline_s=60.0)))
        yield Member(name, engine, address(listener), app, cases, stop, serving)
    finally:
        stop.set()
        async with asyncio.timeout(30):
            assert await serving == 0, name


async def _ready(member: Member) -> None:
    while not member.engine.ready:
        assert not member.serving.done(), f"{member.name} cannot be served"
        await asyncio.sleep(0.05)


async def _alone(member: Member, case: Case) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    async with httpx.AsyncClient(timeout=60) as http:
        kind = {"content-type": "application/msgpack"}
        answer = await http.post(f"{member.url}/v1/walks/{case.request}", content=case.body(False), headers=kind)
    assert answer.status_code == 200, f"{member.name} {case.request}: {answer.text}"
    for event in events_of(answer.content):
        found.setdefault(event["modality"], []).append(event["value"])
    return found


def events_of(document: bytes) -> list[Any]:
    """The events of a whole answer."""
    from mstarc_runtime.serving.tensors import parse_msgpack

    found: list[Any] = parse_msgpack(document)["events"]
    return found


def faults_of(text: str) -> str:
    """The message of an error's body."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]
