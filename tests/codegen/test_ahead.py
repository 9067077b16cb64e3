"""Random programs give what the interpreter gives when their loops run ahead: 1, 7 and 14 iterations a run, seen late (see `ahead`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.ir.core import Noise, Sample, Stop
from mstarc.ir.text import parse_program
from mstarc.passes.form_regions import form_regions
from tests.codegen.ahead import Way, agree_ahead, ahead_program, runs_agree

# small ones of the first: `many` runs the others
SEEDS = (1, 2, 3, 4, 5, 8, 11, 13, 15, 16)


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_programs_ahead(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await agree_ahead(seed, tmp_path, monkeypatch) > 0, "no run of a loop went ahead"


def test_these_programs_hold_everything_that_may_stand_in_a_region() -> None:
    kinds = dict.fromkeys(("send", "where", "gather", "stop", "sample", "noise", "over"), 0)
    for program in map(ahead_program, SEEDS):
        over = {sampler.name for sampler in program.samplers if sampler.over}
        sifted = {stream.name for stream in program.streams if stream.where is not None}
        for walk in program.walks:
            for region in form_regions(walk, program).values():
                ops = region.loop.body.ops
                sent = {name for body in region.bodies for name, _ in body.sends}
                kinds["send"] += bool(sent)
                kinds["where"] += bool(sent & sifted)
                kinds["gather"] += bool(region.collects)
                kinds["stop"] += any(isinstance(op, Stop) for op in ops)
                kinds["sample"] += any(isinstance(op, Sample) for op in ops)
                kinds["noise"] += any(isinstance(op, Noise) for op in ops)
                kinds["over"] += any(isinstance(op, Sample) and op.sampler in over for op in ops)
    assert min(kinds.values()) > 2, kinds


async def test_absent_arguments_of_a_stacked_op_and_items_that_are_numbers_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`next` after the end is absent, beside one that is not; a walk's argument is sent as it came, and padded with its zero."""
    program = parse_program("""mstarc.ir 1
model t
param q: bool = false
node n: stateless {
  op two(x: i64[], extra: i64[]?) -> (y: i64[], z: i64[]) { batch stack }
}
stream s: i64[] by fixed(size = 1) after_end_empty capacity 4
stream u: i64[] by fixed(size = 2) at_end pad:zero capacity 4
walk give(%0 x: i64[]) {
  send %0 to s
  send %0 to u
}
walk take() {
  loop l times 2 do {
    %0 item: i64[]? = next s
    %1 y: i64[], %2 z: i64[] = invoke n.two(iter.l, %0)
    emit %1 as tensor
  }
  for %3 pair: chunk(u, i64[]) in u {
    emit %3 as scalar
  }
}
request r(%0 start: host i64[]) -> (tensor, scalar) {
  together {
    arm a {
      call give(%0)
    }
    arm b {
      call take()
    }
  }
}
""")
    await runs_agree(program, [Way(1, 1, 0), Way(1, 1, 0, ranks=2, shuffle=3)], tmp_path, monkeypatch)


async def test_a_row_is_shown_the_copy_of_a_page_that_a_fork_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that waits for credit at first makes its last page its own later: as many pages, but another one (random program 95)."""
    program = parse_program((Path(__file__).parent / "programs" / "shared_page.ir").read_text())
    assert await runs_agree(program, [Way(unroll=1, ahead=1, looks=1)], tmp_path, monkeypatch)
