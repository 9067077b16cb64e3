"""A small hand-written program for runtime tests: numpy components that count, and can fail, sleep or report on demand."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from mstarc_runtime.abi.linked import Linked, NodeLink, OpLink, RankLink, StreamLink, WalkLink
from mstarc_runtime.abi.messages import ABI

LOG: list[tuple[str, Any]] = []  # what the ops of this process ran, in order


class Counter:
    """next(x) = x + 1, batched; fails for a row that reaches `fail_at`."""

    ARRAYS = "numpy"
    fail_at = 10**9

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Counter:
        found = cls()
        found.fail_at = config.get("fail_at", 10**9)
        return found

    def next(self, x: Any) -> Any:
        LOG.append(("next", np.asarray(x).tolist()))
        if (np.asarray(x) == self.fail_at).any():
            raise ValueError(f"cannot count past {self.fail_at}")
        return x + 1


class Adder:
    """pair(xs) = their sum, one request at a time."""

    ARRAYS = "numpy"

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Adder:
        return cls()

    def pair(self, xs: Any) -> Any:
        LOG.append(("pair", xs.tolist()))
        return xs.sum()


UNCUTTABLE = 103


def cut(state: Any, item: int) -> tuple[Any, bool]:
    """Cuts after every item but one."""
    if item == UNCUTTABLE:
        raise ValueError(f"cannot cut {item}")
    return item, True


WORKER = """
    import numpy as np

    from mstarc_runtime.program import ABSENT, WorkerProgram

    STRANGE = np.array([object()], dtype=object)


    class Toy(WorkerProgram):
        SENDS = {"count_counting": {"numbers": 1}}
        COLLECTS = {"gather_gathering": ("seen",)}

        def count(self, walk, start, limit):
            (n,) = yield walk.loop("counting", self.count_counting, "max", walk.params.steps, (start,), (limit,))
            return (n,)

        def count_counting(self, b, n, limit):
            (n, limit) = b.stop(n == limit, carried=(n,), live=(n, limit))
            b.emit("tensor", n)
            b.send("numbers", n)
            n = b.call("counter.next", n)
            return (n,)

        def add(self, walk):
            while (two := (yield walk.take("numbers"))) is not ABSENT:
                total = yield walk.call("adder.pair", two.value)
                walk.emit("scalar", total)
            return ()

        def one(self, walk):
            two = yield walk.take("numbers")
            walk.emit("scalar", two.value.sum())
            return ()

        def slow(self, walk, count):
            i = 0
            while i < count:
                yield walk.send("numbers", i)
                i += 1
            return ()

        def ragged(self, walk, count):
            for i in range(count):
                yield walk.send("numbers", np.zeros(i))
            return ()

        def unsendable(self, walk, count):
            for i in range(count):
                yield walk.send("numbers", STRANGE)
            return ()

        def unemittable(self, walk, count):
            walk.emit("tensor", STRANGE)
            yield walk.send("numbers", 1)
            return ()

        def unreturnable(self, walk, count):
            yield walk.send("numbers", 1)
            return (STRANGE,)

        def gather(self, walk, start):
            n, seen = yield walk.loop("gathering", self.gather_gathering, "times", walk.params.steps, (start,))
            walk.emit("tensor", seen)
            return (n, seen)

        def gather_gathering(self, b, n):
            b.collect("seen", n)
            n = b.call("counter.next", n)
            return (n,)
"""
CONDUCTOR = """
    from mstarc_runtime.program import ConductorProgram, Entry, Input, Param

    NUMBER = Input("start", "tensor", dtype="i64")
    OUT = (("scalar", False), ("tensor", False))
    STRANGE = ("ragged", "unsendable", "unemittable", "unreturnable")


    class Toy(ConductorProgram):
        PARAMS = (Param("steps", "int", default=5, low=0, high=100000), Param("limit", "int", default=-1, low=-1, high=10**9))
        ENTRIES = tuple(Entry(n, (NUMBER,), OUT) for n in ("sums", "early", "alone", "general", "gathered", "twice", "starved", *STRANGE))
        ARMS = {
            f"{n}_{arm}": ((("numbers",), ()) if arm == "a" else ((), ("numbers",)))
            for n in ("sums", "early", "alone", "general", "starved", *STRANGE) for arm in ("a", "b")
        }
        RESULTS = {"count": 1, "gather": 2}

        def sums(self, request):
            yield request.together(a=self.counting(request), b=self.adding(request))

        def early(self, request):
            yield request.together(a=self.counting(request), b=self.one_only(request))

        def alone(self, request):
            yield request.together(a=self.counting(request), b=self.nothing(request))

        def general(self, request):
            yield request.together(a=self.slowly(request), b=self.adding(request))

        def gathered(self, request):
            yield request.walk("gather", request.inputs.start)

        def twice(self, request):
            (n,) = yield request.walk("count", request.inputs.start, request.params.limit, closes=("numbers",))
            (n,) = yield request.walk("count", n, request.params.limit)

        def ragged(self, request):
            yield request.together(a=self.calling(request, "ragged"), b=self.adding(request))

        def unsendable(self, request):
            yield request.together(a=self.calling(request, "unsendable"), b=self.adding(request))

        def unemittable(self, request):
            yield request.together(a=self.calling(request, "unemittable"), b=self.adding(request))

        def unreturnable(self, request):
            yield request.together(a=self.calling(request, "unreturnable"), b=self.adding(request))

        def calling(self, request, walk):
            yield request.walk(walk, request.params.steps)

        def ragged_need(self, request, need, count): ...
        def unsendable_need(self, request, need, count): ...
        def unemittable_need(self, request, need, count): ...
        def unreturnable_need(self, request, need, count): ...

        def starved(self, request):
            yield request.together(b=self.adding(request))

        def counting(self, request):
            yield request.walk("count", request.inputs.start, request.params.limit, closes=("numbers",))

        def slowly(self, request):
            yield request.walk("slow", request.params.steps)

        def adding(self, request):
            yield request.walk("add")

        def one_only(self, request):
            yield request.walk("one")

        def nothing(self, request):
            return
            yield

        def count_need(self, request, need, start, limit): ...
        def slow_need(self, request, need, count): ...
        def gather_need(self, request, need, start): ...
        def add_need(self, request, need): ...
        def one_need(self, request, need): ...
"""


STRANGE = ("ragged", "unsendable", "unemittable", "unreturnable")


def linked(folder: Path, ranks: int = 1, capacity: int = 4, fail_at: int = 10**9) -> Linked:
    """The toy on one rank, or with its consumer on rank 1."""
    (folder / "worker.py").write_text(textwrap.dedent(WORKER))
    (folder / "conductor.py").write_text(textwrap.dedent(CONDUCTOR))
    sink = ranks - 1
    return Linked(
        abi=ABI,
        model="toy",
        package=str(folder),
        digest="",
        ranks=[RankLink(rank=rank) for rank in range(ranks)],
        config={},
        nodes=[
            NodeLink(
                name="counter",
                kind="stateless",
                component="tests.runtime.toy.Counter",
                ops=[OpLink(name="next", params=["scalar"], results=1, batch="stack")],
                config={"fail_at": fail_at},
            ),
            NodeLink(
                name="adder",
                kind="stateless",
                component="tests.runtime.toy.Adder",
                ops=[OpLink(name="pair", params=["plain"], results=1)],
            ),
        ],
        caches=[],
        contexts=[],
        samplers=[],
        streams=[
            StreamLink(
                name="numbers",
                policy="fixed",
                args={"size": 2},
                capacity=capacity,
                source=0,
                sink=sink,
                at_end="pad:zero",
                transport="slot" if sink == 0 else "shm",
            )
        ],
        walks=[
            WalkLink(name="count", rank=0, nodes=["counter"], sends=["numbers"]),
            WalkLink(name="slow", rank=0, nodes=["counter"], sends=["numbers"]),
            *[WalkLink(name=name, rank=0, nodes=["counter"], sends=["numbers"]) for name in STRANGE],
            WalkLink(name="gather", rank=0, nodes=["counter"]),
            WalkLink(name="add", rank=sink, nodes=["adder"], takes=["numbers"]),
            WalkLink(name="one", rank=sink, nodes=["adder"], takes=["numbers"]),
        ],
        externs={},
        checkpoints=[],
    )
