"""Random programs whose loops run on the device: the bodies of most of them are straight lines of work with fixed shapes.

Besides what `Generator` writes, they hold numbers of the host (`iter`, params), noise, samplers of all kinds, and loops longer than a
run of iterations.
"""

from __future__ import annotations

from tests.interp.random_programs import Generator

DECLS = """mstarc.ir 1
model random
param p: int = {p}
param q: bool = {q}
param heat: float = {heat}
param penalty: float = {penalty}
param top: int = {top}
cache kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
node n: stateless {{
  op f(x: i64[]) -> (y: i64[]) {{ batch stack }}
  op two(x: i64[], extra: i64[]?) -> (y: i64[], z: i64[]) {{ batch stack }}
  op blur(x: i64[], z: f32[3]) -> (y: i64[]) {{ batch stack }}
}}
node llm: transformer on kv {{
  op step(token: i64[]) -> (logits: f32[40]) {{ attend causal positions seq }}
  op peek(x: i64[]) -> (y: i64[]) {{ attend full positions same takes 2 frozen }}
}}
"""
SAMPLERS = (
    "temperature = 0.0",
    "temperature = 0.8",
    "temperature = param.heat, top_k = param.top",
    "temperature = 1.5, top_p = 0.7, repetition_penalty = param.penalty",
    "temperature = 0.0, repetition_penalty = param.penalty, suppress = [3, 4, 5], suppress_first = [7, 9]",
    "temperature = param.heat, min_tokens = 3, ends = [1, 2]",
)


ROWS = 9


class AheadGenerator(Generator):
    """Writes one program; see `Generator`."""

    sifted = 0.6

    def __init__(self, seed: int) -> None:
        super().__init__(seed, chains=seed % 3 == 0)
        self.straight = ""  # label of the straight loop whose body is written
        self.due = False  # whether the next loop is straight and sends, if its arm can
        self.sent = False  # whether the body has its one send
        self.around = 0  # loops around, those over chunks too
        self.table = 0  # a value of the walk with ROWS numbers

    def declarations(self) -> str:
        r = self.random
        return DECLS.format(
            p=r.randint(0, 16),
            q=str(self.chance(0.5)).lower(),
            heat=r.choice([0.0, 0.7, 2.0]),
            penalty=r.choice([1.0, 1.4]),
            top=r.choice([0, 1, 4]),
        )

    def sampler(self, arm: int) -> str:
        over = self.random.choice(["", f" over c{arm}"])
        return f"sampler pick{arm}({self.random.choice(SAMPLERS)}){over}"

    def slack(self) -> int:
        return self.random.choice([0, 1, 3, 20])

    def bounds(self) -> list[str]:
        if self.due:
            return ["5", "9", "param.p"]
        if self.around > 1:
            return ["0", "1", "2", "3"] if self.straight else ["1", "2"]
        return ["0", "1", "9", "16", "param.p"] if self.straight else ["0", "1", "2", "3"]

    def loop(self, arm: int, values: list[int], depth: int) -> list[str]:
        outer, due = (self.straight, self.sent), self.due
        self.straight, self.sent = f"l{self.loops + 1}" if due or self.chance(0.75) else "", False
        self.around += 1
        lines = super().loop(arm, values, 0 if self.straight else depth)
        self.around -= 1
        self.straight, self.sent = outer
        return lines

    def consume(self, arm: int, values: list[int], empty: bool) -> list[str]:
        self.around += 1
        lines = super().consume(arm, values, empty)
        self.around -= 1
        return lines

    def first(self, arm: int, values: list[int]) -> list[str]:
        """Every walk begins with a straight loop, which sends if the arm can; before it a loop that makes the table."""
        self.loops += 1
        number, made = self.value()
        self.table, rows = self.value("i64[dim.R]")
        head = [f"loop l{self.loops} times {ROWS}", f"  gather t -> {rows}", "do {"]
        body = [f"  {made} = compute (%{values[0]} * 5 + iter.l{self.loops}) % 1009", f"  collect %{number} as t", "}"]
        self.due = True
        return [*head, *body, *self.loop(arm, values, 0)]

    def body(self, arm: int, values: list[int], depth: int, loop: str, gather: str) -> list[str]:
        lines = super().body(arm, values, depth, loop, gather)
        if self.due and self.straight and arm < self.arms - 1 and not self.sent:
            lines.append(f"send {self.any_of(values)} to s{arm}")
            self.sent = True
        self.due = False
        return lines

    def operation(self, arm: int, values: list[int], depth: int, loop: str, gather: str) -> list[str]:
        if self.straight:
            return self.straight_operation(arm, values, gather)
        if depth > 0 and self.loops < 3 * self.arms and self.chance(0.2):
            return self.loop(arm, values, depth - 1)
        return super().operation(arm, values, depth, loop, gather)

    def straight_operation(self, arm: int, values: list[int], gather: str) -> list[str]:
        """One that may stand in a region."""
        x = self.any_of(values)
        match self.random.randrange(12):
            case 0:
                number = self.random.choice([self.any_of(values), f"iter.{self.straight}", "param.p", "7"])
                return self._new(values, f"compute ({x} * 3 + {number}) % 1009")
            case 1:
                return self._new(values, f"invoke n.f({x})")
            case 2 | 3:
                logits, first = self.value("f32[40]")
                self.sites += 1
                draw = f'sample pick{arm}(%{logits}) site "d{self.sites}"'
                return [f"{first} = invoke llm.step({x}) writes c{arm}", *self._new(values, draw)]
            case 4:
                return self._new(values, f"invoke llm.peek({x}) reads {self.random.choice('cd')}{arm}")
            case 5:
                return [f"_ = invoke llm.step({x}) writes {self.random.choice([f'd{arm}', f'd{arm}, c{arm}'])}"]
            case 6:
                return [f"emit {x} as m{arm}"]
            case 7 if arm < self.arms - 1 and not self.sent:
                self.sent = True
                return [f"send {x} to s{arm}"]
            case 8 if gather:
                return [f"collect {x} as {gather}"]
            case 9:
                z, noise = self.value("f32[3]")
                self.sites += 1
                return [f'{noise} = noise site "z{self.sites}"', *self._new(values, f"invoke n.blur({x}, %{z})")]
            case 10 if self.times is not None and self.times + 2 <= ROWS:
                at = f"iter.{self.straight}" + self.random.choice(["", " + 1", " + 2"])
                return self._new(values, f"compute ({x} + %{self.table}[{at}]) % 1009")
            case 11:
                return self.guarded(arm, values, gather)
        return []

    def guarded(self, arm: int, values: list[int], gather: str) -> list[str]:
        """Some behind a condition that the host knows, of which a call takes what may be absent."""
        x, inner = self.any_of(values), list(values)
        lines = [line for _ in range(self.random.randint(1, 2)) for line in self.straight_operation(arm, inner, gather)]
        y, found = self.value()
        lines.append(f"{found} = invoke n.f({self.any_of(inner)})")
        phi, result = self.value("i64[]?")
        a, first = self.value()
        b, second = self.value()
        values += [a, b]
        cond = self.random.choice(["param.q", "not param.q", "param.p > 2", f"iter.{self.straight} % 3 == 0"])
        return [
            f"when {cond} {{",
            *("  " + line for line in lines),
            f"}} -> (%{y} to {result})",
            f"{first}, {second} = invoke n.two({x}, %{phi})",
        ]

    def _new(self, values: list[int], text: str) -> list[str]:
        """A statement that binds a further value."""
        ident, value = self.value()
        values.append(ident)
        return [f"{value} = {text}"]
