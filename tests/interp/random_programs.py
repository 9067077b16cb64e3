"""Random well-formed programs as IR text: a chain of arms joined by streams, each with its own context and sampler.

Arm k takes from stream k - 1 (all chunks, or a bounded number of `next`) and sends on stream k. Bodies hold computes, op calls, draws,
`when`, inner loops with `stop` and `collect`, forks and drops. The hash machine makes any mistake change an answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from mstarc_runtime.abi.chunks import Policy, least_capacity, policy_of

DECLS = """mstarc.ir 1
model random
param p: int = {p}
param q: bool = {q}
cache kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
node n: stateless {{
  op f(x: i64[]) -> (y: i64[])
  op two(x: i64[], extra: i64[]?) -> (y: i64[], z: i64[])
}}
node llm: transformer on kv {{
  op step(token: i64[]) -> (logits: f32[40]) {{ attend causal positions seq }}
  op peek(x: i64[]) -> (y: i64[]) {{ attend full positions same takes 2 frozen }}
}}
"""
#: ops of the node that only one arm calls: with noise, with its sampler, with cells alone
OWN = ("noisy", "picky", "keeping")
NODE = """node own{arm}: stateless {{
  op noisy(x: i64[]) -> (y: i64[]) {{ random }}
  op picky(x: i64[]) -> (y: i64[]) {{ samples pick{arm} }}
  op keeping(x: i64[]) -> (y: i64[])
  state seen: i64[] = param.p
  state odd: bool[] = false
}}
"""


class Generator:
    """Writes one program. `text()` is the same for the same seed.

    A `sound` one keeps most rules of the checks too: contexts are written before they are read, streams are sent on, overlaps are
    declared, and the bounds of loops are in range. One with `chains` has the same walks, and calls several of them in a row: before,
    in and after its `together`, some with results that go to later ones.
    """

    sifted = 0.3  # of the streams have a `where`

    def __init__(self, seed: int, sound: bool = False, chains: bool = False) -> None:
        self.sound = sound
        self.calls = random.Random(seed) if chains else None
        self.random = random.Random(seed)
        self.arms = self.random.randint(1, 3)
        self.times: int | None = None  # iterations of the innermost loop, where that is a number
        self.next_id = 0
        self.sites = 0
        self.loops = 0

    # ----------------------------------------------------------------------------------------------------------- helpers

    def value(self, kind: str = "i64[]") -> tuple[int, str]:
        ident, self.next_id = self.next_id, self.next_id + 1
        return ident, f"%{ident} v{ident}: {kind}"

    def any_of(self, values: list[int]) -> str:
        return f"%{self.random.choice(values)}"

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    # ------------------------------------------------------------------------------------------------------------- bodies

    def body(self, arm: int, values: list[int], depth: int, loop: str, gather: str) -> list[str]:
        """Some operations; `values` grows by what they define. `loop`: the label around, `gather`: what it gathers."""
        lines: list[str] = []
        for _ in range(self.random.randint(1, 5)):
            lines += self.operation(arm, values, depth, loop, gather)
        return lines

    def operation(self, arm: int, values: list[int], depth: int, loop: str, gather: str) -> list[str]:
        pick = self.random.randrange(12)
        x = self.any_of(values)
        if pick == 0:
            ident, value = self.value()
            line = f"{value} = compute ({x} * 3 + {self.any_of(values)}) % 1009"
        elif pick == 1:
            ident, value = self.value()
            line = f"{value} = invoke {self.random.choice(('n.f', *(f'own{arm}.{op}' for op in OWN)))}({x})"
        elif pick == 2:
            logits, first = self.value("f32[40]")
            ident, second = self.value()
            self.sites += 1
            draw = f'{second} = sample pick{arm}(%{logits}) site "d{self.sites}"'
            values.append(ident)
            return [f"{first} = invoke llm.step({x}) writes c{arm}", draw]
        elif pick == 3:
            ident, value = self.value()
            line = f"{value} = invoke llm.peek({x}) reads {self.random.choice([f'c{arm}', f'd{arm}'])}"
        elif pick == 4:
            return [
                self.random.choice(
                    [f"fork d{arm} from c{arm}", f"drop d{arm}", f"_ = invoke llm.step({x}) writes d{arm}, c{arm}"]
                )
            ]
        elif pick == 5:
            return [f"emit {x} as m{arm}"]
        elif pick == 6 and arm < self.arms - 1:
            return [f"send {x} to s{arm}"]
        elif pick == 7 and gather:
            return [f"collect {x} as {gather}"]
        elif pick == 11:
            return self.parallel(arm, values)
        elif pick == 8:
            return self.when(arm, values, depth, loop, gather)
        elif pick == 9 and depth > 0:
            return self.loop(arm, values, depth - 1)
        else:
            return []
        values.append(ident)
        return [line]

    def parallel(self, arm: int, values: list[int]) -> list[str]:
        """Calls at once on both contexts, one perhaps behind a guard; frozen ones may have equal arguments."""
        x = self.any_of(values)
        lines, found = [], []
        for context in (f"c{arm}", f"d{arm}", f"c{arm}"):
            ident, value = self.value()
            lines.append(f"{value} = invoke llm.peek({self.random.choice([x, self.any_of(values)])}) reads {context}")
            found.append(ident)
        y, first = self.value()
        lines.append(f"{first} = invoke n.f({x})")
        guarded, inner = self.value()
        phi, result = self.value("i64[]?")
        lines += ["when param.q {", f"  {inner} = invoke n.f({x})", f"}} -> (%{guarded} to {result})"]
        y_2, second = self.value()
        z, third = self.value()
        values += [*found, y, y_2, z]
        return ["parallel {", *("  " + line for line in lines), "}", f"{second}, {third} = invoke n.two({x}, %{phi})"]

    def when(self, arm: int, values: list[int], depth: int, loop: str, gather: str) -> list[str]:
        conds = ["param.q", "not param.q", "param.p > 2"] + ([f"iter.{loop} % 2 == 0"] if loop else [])
        inner = list(values)
        lines = self.body(arm, inner, depth - 1, loop, gather)
        ident, value = self.value()
        lines.append(f"{value} = invoke n.f({self.any_of(inner)})")
        phi, result = self.value("i64[]?")
        y, first = self.value()
        z, second = self.value()
        x = self.any_of(values)
        values += [y, z]
        return [
            f"when {self.random.choice(conds)} {{",
            *("  " + line for line in lines),
            f"}} -> (%{ident} to {result})",
            f"{first}, {second} = invoke n.two({x}, %{phi})",
        ]

    def bounds(self) -> list[str]:
        """Bounds of loops to choose from."""
        return ["0", "1", "3", "param.p"]

    def loop(self, arm: int, values: list[int], depth: int) -> list[str]:
        """A static or dynamic loop with one or two carried names, perhaps a stop and a gather."""
        self.loops += 1
        label, gather = f"l{self.loops}", f"g{self.loops}" if self.chance(0.5) else ""
        kind, bound = self.random.choice(["times", "max"]), self.random.choice(self.bounds())
        if self.sound and (kind == "max" or bound == "param.p"):
            bound = self.random.choice(["1", "2", "3"])
        self.times = int(bound) if kind == "times" and bound.isdigit() else None
        carried = [(self.any_of(values), *self.value()) for _ in range(self.random.randint(1, 2))]
        inner = values + [ident for _, ident, _ in carried]
        lines = self.body(arm, inner, depth, label, gather)
        if kind == "max" and self.chance(0.7):
            stopped = ", ".join(self.any_of(inner) for _ in carried)
            lines.append(f"stop {self.any_of(inner)} % {self.random.randint(2, 5)} == 0 with ({stopped})")
        lines += self.body(arm, inner, depth, label, gather)
        ends = [self.any_of(inner) for _ in carried]
        head = [f"loop {label} {kind} {bound}"]
        for (init, ident, value), end in zip(carried, ends, strict=True):
            after, result = self.value()
            values.append(after)
            head.append(f"  carry {value} = {init} then {end} -> {result}")
            del ident
        tail = ["}"]
        if gather:
            rows, result = self.value("i64[dim.R]")
            head.append(f"  gather {gather} -> {result}")
            tail.append(f"emit %{rows} as m{arm}")
        return [*head, "do {", *("  " + line for line in lines), *tail]

    # ------------------------------------------------------------------------------------------------------------ program

    def walk(self, arm: int, empty: bool) -> list[str]:
        self.next_id = 0
        start, param = self.value()
        values = [start]
        lines = self.first(arm, values)
        lines += self.body(arm, values, 2, "", "")
        if arm > 0:
            lines += self.consume(arm, values, empty)
        lines += self.body(arm, values, 2, "", "")
        lines.append(f"emit {self.any_of(values)} as m{arm}")
        return [f"walk w{arm}({param}) {{", *("  " + line for line in lines), "}"]

    def first(self, arm: int, values: list[int]) -> list[str]:
        """What makes everything after it sound."""
        if not self.sound:
            return []
        lines = [f"_ = invoke llm.step(%0) writes d{arm}, c{arm}"]
        return lines + [f"send %0 to s{arm}"] * (arm < self.arms - 1) * self.random.randint(1, 3)

    def consume(self, arm: int, values: list[int], empty: bool) -> list[str]:
        stream = f"s{arm - 1}"
        if empty:  # a bounded number of takes, absent after the end
            self.loops += 1
            label = f"l{self.loops}"
            chunk, value = self.value("i64[]?")
            inner, lines = list(values), [f"{value} = next {stream}", f"emit present(%{chunk}) as m{arm}"]
            a, first = self.value()
            b, second = self.value()
            inner += [a, b]
            lines.append(f"{first}, {second} = invoke n.two({self.any_of(values)}, %{chunk})")
            lines += self.body(arm, inner, 1, label, "")
            return [
                f"loop {label} times {self.random.randint(0, 6)} do {{",
                *("  " + line for line in lines),
                "}",
            ]
        _, value = self.value(f"chunk({stream}, i64[])")
        chunk = self.next_id - 1
        ident, summed = self.value()
        inner = [*values, ident]
        lines = [
            f"emit %{chunk} as m{arm}(new = %{chunk}.new, tail = %{chunk}.tail)",
            f"{summed} = invoke n.f(%{chunk})",
        ]
        lines += self.body(arm, inner, 1, "", "")
        return [f"for {value} in {stream} {{", *("  " + line for line in lines), "}"]

    def stream(self, arm: int, empty: bool) -> str:
        r = self.random
        size = r.randint(1, 4)
        name, args = r.choice([
            ("fixed", {"size": size}),
            ("sliding_window", {"size": size, "stride": r.randint(1, size)}),
            ("left_context", {"chunk": size, "left": r.randint(0, size)}),
        ])  # fmt: skip
        if empty:
            name, args = "fixed", {"size": 1}
        policy: Policy = policy_of(name, args)
        end = r.choice([" at_end drop", " at_end partial", " at_end pad:zero", " at_end pad:repeat"])
        where = " where dim.item % 3 != 1" if self.chance(self.sifted) else ""
        after = " after_end_empty" if empty else ""
        after += " overlap_ok" if self.sound and name != "fixed" else ""
        shown = ", ".join(f"{key} = {value}" for key, value in args.items())
        return f"stream s{arm}: i64[]{where} by {name}({shown}){end}{after} capacity {least_capacity(policy) + self.slack()}"

    def slack(self) -> int:
        """Items beyond the least capacity of a stream."""
        return self.random.randint(0, 3)

    def declarations(self) -> str:
        """What stands before the contexts."""
        return DECLS.format(p=self.random.randint(0, 6), q=str(self.chance(0.5)).lower())

    def sampler(self, arm: int) -> str:
        """The sampler of an arm."""
        return f"sampler pick{arm}(temperature = 0.8)"

    def text(self) -> str:
        empties = [self.chance(0.4) for _ in range(self.arms)]
        lines = [self.declarations().rstrip()]
        for arm in range(self.arms):
            lines += [f"context c{arm} on kv", f"context d{arm} on kv", self.sampler(arm)]
            lines.append(NODE.format(arm=arm).rstrip())
            if self.calls is not None:
                lines += [f"context e{arm} on kv", f"sampler plain{arm}(temperature = 0.8)"]
        lines += [self.stream(arm, empties[arm]) for arm in range(self.arms - 1)]
        for arm in range(self.arms):
            lines += self.walk(arm, empties[arm - 1] if arm else False)
        outputs = ", ".join(f"m{arm}" for arm in range(self.arms))
        head = f"request r(%0 start: host i64[]) -> ({outputs}) {{"
        if self.calls is None:
            body = self.together("a", [[f"call w{arm}(%0)"] for arm in range(self.arms)])
            return "\n".join([*lines, head, *body, "}"]) + "\n"
        lines += [line for arm in range(self.arms) for line in self.plain_walk(arm)]
        self.next_id = 1
        every = range(self.arms)
        body = self.some_calls(self.calls, every, ["%0"])
        if self.calls.random() < 0.5:
            body += self.together("b", [self.some_calls(self.calls, [arm], ["%0"], "x") for arm in every])
        body += self.together("a", [[*self.some_calls(self.calls, [arm], ["%0"]), f"call w{arm}(%0)"] for arm in every])
        return "\n".join([*lines, head, *body, *self.some_calls(self.calls, every, ["%0"]), "}"]) + "\n"

    def together(self, prefix: str, arms: list[list[str]]) -> list[str]:
        lines = ["together {"]
        for arm, calls in enumerate(arms):
            lines += [f"  arm {prefix}{arm} {{", *("    " + line for line in calls), "  }"]
        return [*lines, "}"]

    def plain_walk(self, arm: int) -> list[str]:
        """One without streams, that gives two results."""
        return [
            f"walk x{arm}(%0 v: i64[]) -> (y: i64[] = %1, z: i64[] = %3) {{",
            "  %1 y: i64[] = invoke n.f(%0)",
            f"  %2 l: f32[40] = invoke llm.step(%1) writes e{arm}",
            f'  %3 z: i64[] = sample plain{arm}(%2) site "x"',
            f"  emit %3 as m{arm}",
            "}",
        ]

    def some_calls(self, r: random.Random, arms: Sequence[int], values: list[str], walks: str = "wxx") -> list[str]:
        """Walk calls of these arms, one to five; the host looks at some of the results, and some calls depend on a param."""
        lines: list[str] = []
        for _ in range(r.randint(1, 5)):
            walk, value = f"{r.choice(walks)}{r.choice(arms)}", r.choice(values)
            call = f"call {walk}({value})"
            bare = call if walk[0] == "w" else f"_, _ = {call}"
            if r.random() < 0.2:
                lines += [f"if {r.choice(['param.q', 'param.p > 2'])} {{", f"  {bare}", "}"]
            elif walk[0] == "w" or r.random() < 0.4:
                lines.append(bare)
            else:
                (y, first), (z, second) = self.value(), self.value()
                lines.append(f"{first}, {second} = {call}")
                values = [*values, f"%{y}", f"%{z}"]
                if r.random() < 0.3:
                    w, summed = self.value()
                    lines.append(f"{summed} = compute (%{y} + %{z}) % 1009")
                    values.append(f"%{w}")
        return lines
