"""Random programs with flows: loops whose values have a length of the request, with calls at once, branches behind conditions or on
contexts that may be off, and `guide` between them. Beside them stands what `AheadGenerator` writes.
"""

from __future__ import annotations

from tests.codegen.ahead_programs import AheadGenerator

OPS = """  op grow(x: i64[]) -> (y: i64[dim.S])
  op fold(x: i64[dim.S]) -> (y: i64[])
  op mix(x: i64[dim.S], other: i64[dim.S]?, k: i64[]) -> (y: i64[dim.S])
"""
FLOW = "  op flow(x: i64[dim.S], t: i64[]) -> (v: i64[dim.S]) { attend full positions same takes dim.S frozen }\n"


class FlowGenerator(AheadGenerator):
    """Writes one program; see `Generator`. A flow carries a vector `x` whose length an op decides, and mostly a number."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.arms = min(self.arms, 2)

    def declarations(self) -> str:
        text = super().declarations()
        text = text.replace("  op blur(", OPS + "  op blur(").replace("  op peek(", FLOW + "  op peek(")
        return text + "".join(f"context f{arm} on kv when param.q\n" for arm in range(self.arms))

    def first(self, arm: int, values: list[int]) -> list[str]:
        """Contexts that differ or are equal, then a flow over them."""
        written = [
            f"_ = invoke llm.step(%0) writes {self.random.choice([f'd{arm}, c{arm}', f'c{arm}, f{arm}', f'c{arm}'])}"
        ]
        forks = [f"fork {name}{arm} from {self.random.choice('cd')}{arm}" for name in "fd" if self.chance(0.4)]
        return [*written, *forks, *super().first(arm, values), *self.flow(arm, values)]

    def loop(self, arm: int, values: list[int], depth: int) -> list[str]:
        if not self.due and not self.straight and self.around < 2 and self.chance(0.4):
            return self.flow(arm, values)
        return super().loop(arm, values, depth)

    def straight_operation(self, arm: int, values: list[int], gather: str) -> list[str]:
        """Calls at once, too, of one shape for all requests."""
        if not self.chance(0.15):
            return super().straight_operation(arm, values, gather)
        x, y = self.any_of(values), self.any_of(values)
        calls = [f"llm.peek({x}) reads c{arm}", f"llm.peek({x}) reads d{arm}", f"n.f({y})"]
        lines = [line for call in calls for line in self._new(values, f"invoke {call}")]
        return ["parallel {", *("  " + line for line in lines), "}"]

    # --------------------------------------------------------------------------------------------------------------- flows

    def flow(self, arm: int, values: list[int]) -> list[str]:
        """A loop with a vector, and what is shown of it."""
        self.loops += 1
        label, kind, r = f"l{self.loops}", f"i64[dim.S{self.loops}]", self.random
        gather = f"g{self.loops}" if self.chance(0.4) else ""
        times = self.chance(0.7)
        start, grown = self.value(kind)
        x, carried = self.value(kind)
        n, number = self.value()
        init = self.any_of(values)
        vectors, numbers = [x], [*values, n]
        conds = [
            "param.q",
            "param.p > 2",
            *([f"iter.{label} % 2 == 0", f"iter.{label} > param.p % 3"] if times else []),
        ]
        chosen = r.sample(conds, r.choice([1, 1, 2, 2, 3]) if len(conds) > 2 else 1)
        body: list[str] = []
        for _ in range(r.randint(1, 3)):
            body += self.branches(arm, label, kind, vectors, numbers, chosen)
            body += self.of_flow(arm, label, kind, vectors, numbers, gather)
        if not times and self.chance(0.6):
            body.append(f"stop {self.any_of(numbers)} % 3 == 0 with ({self.any_of(vectors)}, {self.any_of(numbers)})")
        body += self.of_flow(arm, label, kind, vectors, numbers, gather)
        after, result = self.value(kind)
        m, last = self.value()
        bound = r.choice(["0", "1", "3", "5", "param.p"]) if times else r.choice(["1", "3", "4"])
        lines = [
            f"{grown} = invoke n.grow({self.any_of(values)})",
            f"loop {label} {'times' if times else 'max'} {bound}",
            f"  carry {carried} = %{start} then %{vectors[-1]} -> {result}",
            f"  carry {number} = {init} then {self.any_of(numbers)} -> {last}",
        ]
        ends = [f"emit %{after} as m{arm}"]
        if gather:
            rows, found = self.value("i64[dim.G]")
            lines.append(f"  gather {gather} -> {found}")
            ends.append(f"emit %{rows} as m{arm}")
        values.append(m)
        return [*lines, "do {", *("  " + line for line in body), "}", *ends]

    def branches(
        self, arm: int, label: str, kind: str, vectors: list[int], numbers: list[int], conds: list[str]
    ) -> list[str]:
        """Velocities at once, the first always there, and what `guide` makes of them."""
        r, x = self.random, self.any_of(vectors)
        t = r.choice(["param.p", f"iter.{label}", f"iter.{label} * 2 + 1", self.any_of(numbers), "3"])
        v, first = self.value(kind)
        lines, found = [f"{first} = invoke llm.flow({x}, {t}) reads c{arm}"], []
        for context in r.sample(["c", "d", "f", "f"], r.choice([1, 2, 2])):
            given = r.choice([x, x, self.any_of(vectors)])
            inner, value = self.value(kind + "?" * (context == "f"))
            call = f"{value} = invoke llm.flow({given}, {t}) reads {context}{arm}"
            if self.chance(0.6):
                phi, result = self.value(kind + "?")
                lines += [f"when {r.choice(conds)} {{", f"  {call}", f"}} -> (%{inner} to {result})"]
                found.append(phi)
            else:
                lines.append(call)
                found.append(inner)
        scales = ["param.p % 3", "2", f"iter.{label} + 1", "param.p"]
        args = ", ".join([f"%{ident}" for ident in (v, *found)] + r.choices(scales, k=len(found)))
        y, guided = self.value(kind)
        z, mixed = self.value(kind)
        vectors += [v, y, z]
        return [
            *(["parallel {", *("  " + line for line in lines), "}"] if self.chance(0.8) else lines),
            f"{guided} = compute ({x} * 3 + guide({args}) - {r.choice([f'iter.{label}', 'param.p', self.any_of(numbers)])}) % 1009",
            f"{mixed} = invoke n.mix(%{y}, %{r.choice(found)}, {self.any_of(numbers)})",
        ]

    def of_flow(
        self, arm: int, label: str, kind: str, vectors: list[int], numbers: list[int], gather: str
    ) -> list[str]:
        """An operation that stands in a flow besides."""
        x = self.any_of(vectors)
        match self.random.randrange(8):
            case 0:
                return self._new(numbers, f"invoke n.fold({x})")
            case 1:
                ident, value = self.value(kind)
                vectors.append(ident)
                return [f"{value} = compute ({x} + {self.any_of(vectors[:-1])} * {self.any_of(numbers)}) % 1009"]
            case 2:
                return [f"emit {self.random.choice([x, self.any_of(numbers)])} as m{arm}"]
            case 3 if gather:
                return [f"collect {x} as {gather}"]
            case 4:
                logits, first = self.value("f32[40]")
                self.sites += 1
                draw = f'sample pick{arm}(%{logits}) site "d{self.sites}"'
                return [f"{first} = invoke llm.step({self.any_of(numbers)}) writes c{arm}", *self._new(numbers, draw)]
            case 5:
                return self._new(numbers, f"invoke n.f({self.any_of(numbers)})")
            case 6:
                return self._new(numbers, f"compute ({self.any_of(numbers)} + %{self.table}[0]) % 1009")
        return []
