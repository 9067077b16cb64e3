"""The transformer engine against a dense oracle: batching, positions, frozen ops, several contexts, forks, cross attention, failures."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry, OutOfPages, PagedPool
from mstarc_runtime.engines import attention
from mstarc_runtime.engines.transformer import Call, EngineError, OpSpec, TransformerEngine
from tests.engines.dense_model import DIM, HEADS, KV_HEADS, LAYERS, WIDTH, Dense, Net, Probe, dense_listen, dense_run

NET = Net(1)
PROBE = Probe(NET)
GEOMETRY = Geometry(LAYERS, HEADS, KV_HEADS, DIM)
READ = OpSpec("n.read", ("packed",), ("packed",))
STEP = OpSpec("n.step", ("scalar",))


def make(pages: int = 200, page_size: int = 4) -> TransformerEngine:
    return TransformerEngine(PagedPool(GEOMETRY, pages, page_size=page_size, poison=True))


def rows(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), atol=2e-5, rtol=1e-4)


def seq(context: Dense | Context, count: int) -> torch.Tensor:
    return torch.arange(context.position, context.position + count)


def test_a_batch_of_ragged_prefills_and_steps_equals_the_oracle() -> None:
    engine = make()
    lengths = [1, 3, 17, 9, 9, 30]
    contexts, dense = [Context(engine.pool) for _ in lengths], [Dense() for _ in lengths]
    ids = [torch.randint(0, 50, (n,), generator=torch.Generator().manual_seed(n)) for n in lengths]
    calls = [Call((i,), (c,), len(i)) for i, c in zip(ids, contexts, strict=True)]
    (found,) = engine.call(PROBE.forward, READ, calls)
    for got, i, d in zip(found, ids, dense, strict=True):
        close(got, dense_run(NET, d, i, seq(d, len(i)), True, False))
        d.position += len(i)
    for token in range(6):
        order = list(range(len(lengths)))
        random.Random(token).shuffle(order)
        (tails,) = engine.call(PROBE.tail, STEP, [Call((token + k,), (contexts[k],), 1) for k in order])
        for got, k in zip(tails, order, strict=True):
            d = dense[k]
            close(got, dense_run(NET, d, torch.tensor([token + k]), seq(d, 1), True, False)[-1])
            d.position += 1
    for context, d, i in zip(contexts, dense, ids, strict=True):
        assert (context.length, context.position) == (d.length, d.position)
        assert context.ids.tolist()[: len(i)] == i.tolist()
        assert len(context.ids) == context.length
        context.drop()
    assert engine.pool.free_pages == engine.pool.total_pages


@pytest.mark.parametrize("causal", [True, False])
def test_a_later_prefill_sees_the_context_and_its_own_rows(causal: bool) -> None:
    engine = make()
    spec = OpSpec("n.read", ("packed",), ("packed",), attend="causal" if causal else "full")
    context, dense = Context(engine.pool), Dense()
    for k, count in enumerate([5, 20, 1, 7]):
        x = rows(count, k)
        (found,) = engine.call(PROBE.forward, spec, [Call((x,), (context,), count)])
        close(found[0], dense_run(NET, dense, x, seq(dense, count), causal, False))
        dense.position += count
    assert len(context.ids) == 0  # embeddings have no ids


def test_attend_causal_and_full_differ() -> None:
    x, results = rows(6, 3), []
    for attend in ("causal", "full"):
        engine = make()
        spec = OpSpec("n.read", ("packed",), ("packed",), attend=attend)  # type: ignore[arg-type]
        (found,) = engine.call(PROBE.forward, spec, [Call((x,), (Context(engine.pool),), 6)])
        results.append(found[0])
    assert not torch.allclose(results[0], results[1], atol=1e-3)


@pytest.mark.parametrize("attend", ["causal", "full"])
@pytest.mark.parametrize("counts", [[4, 4, 4], [1, 1, 1], [2, 5, 3], [12, 12, 12]])
def test_frozen_ops_read_and_change_nothing(attend: Any, counts: list[int]) -> None:
    engine = make()
    contexts, dense = [Context(engine.pool) for _ in range(3)], [Dense() for _ in range(3)]
    for k, (context, d) in enumerate(zip(contexts, dense, strict=True)):
        if k == 1:
            continue  # an empty context is legal to read
        x = rows(3 + 14 * k, k)
        engine.call(PROBE.forward, READ, [Call((x,), (context,), len(x))])
        dense_run(NET, d, x, seq(d, len(x)), True, False)
        d.position += len(x)
    before = [(c.length, c.position, list(c.pages)) for c in contexts]
    spec = OpSpec("n.velocity", ("packed",), ("packed",), attend=attend, positions="same", frozen=True)
    xs = [rows(count, 9 + k) for k, count in enumerate(counts)]
    free = engine.pool.free_pages
    for _ in range(2):
        calls = [Call((x,), (c,), len(x)) for x, c in zip(xs, contexts, strict=True)]
        calls.append(Call((xs[0],), (contexts[2],), len(xs[0])))  # two calls of a batch may read one context
        (found,) = engine.call(PROBE.forward, spec, calls)
        for got, x, d in zip(found, [*xs, xs[0]], [*dense, dense[2]], strict=True):
            same = torch.full((len(x),), d.position)
            close(got, dense_run(NET, d, x, same, attend == "causal", True))
    assert [(c.length, c.position, list(c.pages)) for c in contexts] == before
    assert engine.pool.free_pages == free


def test_position_rules() -> None:
    engine = make()
    context, dense = Context(engine.pool), Dense()

    def run(spec: OpSpec, positions: torch.Tensor, moved: int, **more: Any) -> None:
        x = rows(5, moved)
        (found,) = engine.call(PROBE.forward, spec, [Call((x,), (context,), 5, **more)])
        close(found[0], dense_run(NET, dense, x, positions + dense.position, True, False))
        dense.position += moved
        assert (context.length, context.position) == (dense.length, dense.position)

    same = OpSpec("n.same", ("packed",), ("packed",), positions="same")
    at = OpSpec("n.at", ("packed",), ("packed",), positions="at")
    run(READ, torch.arange(5), 5)
    run(same, torch.zeros(5, dtype=torch.int64), 0)
    run(same, torch.zeros(5, dtype=torch.int64), 1, advance=1)
    run(at, torch.tensor([0, 2, 2, 7, 1]), 8, offsets=torch.tensor([0, 2, 2, 7, 1]), advance=8)
    run(READ, torch.arange(5), 2, advance=2)
    grid = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 1, 1, 2], [0, 1, 0, 1, 0]])
    run(at, grid, 3, offsets=grid, advance=3)


def test_one_call_on_several_contexts_gives_the_value_of_the_first() -> None:
    engine = make()
    a, b, c = (Context(engine.pool) for _ in range(3))
    da, db, dc = Dense(), Dense(), Dense()
    for context, d, x in ((a, da, rows(7, 1)), (b, db, rows(2, 2))):
        engine.call(PROBE.forward, READ, [Call((x,), (context,), len(x))])
        dense_run(NET, d, x, seq(d, len(x)), True, False)
        d.position += len(x)
    spec = OpSpec("n.tail", ("packed",))
    x, y = rows(3, 5), rows(4, 6)
    (tails,) = engine.call(PROBE.tail, spec, [Call((x,), (a, b), 3), Call((y,), (c,), 4)])
    assert tails.shape == (2, WIDTH)
    close(tails[0], dense_run(NET, da, x, seq(da, 3), True, False)[-1])
    close(tails[1], dense_run(NET, dc, y, seq(dc, 4), True, False)[-1])
    dense_run(NET, db, x, seq(db, 3), True, False)
    db.position += 3
    z = rows(2, 8)
    (found,) = engine.call(PROBE.forward, READ, [Call((z,), (b,), 2)])
    close(found[0], dense_run(NET, db, z, seq(db, 2), True, False))


def test_cross_attention_over_sources_of_different_lengths() -> None:
    engine = make()
    listen = OpSpec("n.listen", ("packed",), (), attend="full", positions="same")
    across = OpSpec("n.across", ("packed",), ("packed",), cross=True)
    sources, said = [Context(engine.pool) for _ in range(4)], [Context(engine.pool) for _ in range(4)]
    dense, own = [Dense() for _ in range(4)], [Dense() for _ in range(4)]
    for source, d, count in zip(sources, dense, [11, 2, 0, 11], strict=True):
        if count:
            x = rows(count, count)
            assert engine.call(PROBE.listen, listen, [Call((x,), (source,), count)]) == ()
            dense_listen(NET, d, x)
            assert (source.length, source.position) == (count, 0)
    for counts in ([1, 1, 1, 1], [3, 1, 2, 12], [1, 1, 1, 1]):
        xs = [rows(count, 20 + k) for k, count in enumerate(counts)]
        calls = [Call((x,), (c,), len(x), cross=s) for x, c, s in zip(xs, said, sources, strict=True)]
        (found,) = engine.call(PROBE.across, across, calls)
        for got, x, mine, d in zip(found, xs, own, dense, strict=True):
            close(got, dense_run(NET, mine, x, seq(mine, len(x)), True, False, cross=d))
            mine.position += len(x)
    with pytest.raises(EngineError, match="names no source"):
        engine.call(PROBE.across, across, [Call((rows(1, 0),), (said[0],), 1)])


@pytest.mark.parametrize("seed", range(24))
def test_random_histories_equal_the_oracle(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random forks, drops, writes and frozen reads over many contexts, checked against the oracle at every call.

    The limits that split a batch into kernels vary, so that every kind of group meets every kind of op.
    """
    pick = random.Random(seed)
    monkeypatch.setattr(attention, "IN_PLACE_MIN", pick.choice([1, 10, 1000]))
    monkeypatch.setattr(attention, "BATCH_ROWS_MAX", pick.choice([1, 4, 100]))
    monkeypatch.setattr(attention, "PAD_SLACK", pick.choice([0, 64]))
    engine = make(pages=320, page_size=pick.choice([1, 3, 4, 16]))
    pairs: list[tuple[Context, Dense]] = [(Context(engine.pool), Dense())]
    for step in range(40):
        action = pick.choice(["write", "write", "write", "frozen", "fork", "drop"])
        context, dense = pick.choice(pairs)
        if action == "fork" and len(pairs) < 7:
            pairs.append((context.fork(), dense.fork()))
        elif action == "drop":
            context.drop()
            dense.rows, dense.position = [[] for _ in range(LAYERS)], 0
        else:
            _random_call(engine, pick, pairs, frozen=action == "frozen", seed=1000 * seed + step)
    for context, dense in pairs:
        assert (context.length, context.position) == (dense.length, dense.position)
        context.drop()
    assert engine.pool.free_pages == engine.pool.total_pages


def _random_call(
    engine: TransformerEngine, pick: random.Random, pairs: list[tuple[Context, Dense]], frozen: bool, seed: int
) -> None:
    members = pick.sample(pairs, pick.randint(1, len(pairs)))
    members = [pair for pair in members if pair[1].length < 40] or members[:1]
    causal, most = pick.random() < 0.5, pick.choice([1, 1, 4, 12])
    positions: Any = pick.choice(["seq", "same"])
    attend: Any = "causal" if causal else "full"
    spec = OpSpec("n.any", ("packed",), ("packed",), attend=attend, positions=positions, frozen=frozen)
    xs = [rows(pick.randint(1, most), seed * 10 + k) for k in range(len(members))]
    (found,) = engine.call(
        PROBE.forward, spec, [Call((x,), (c,), len(x)) for x, (c, _) in zip(xs, members, strict=True)]
    )
    for got, x, (_, dense) in zip(found, xs, members, strict=True):
        at = seq(dense, len(x)) if positions == "seq" else torch.full((len(x),), dense.position)
        close(got, dense_run(NET, dense, x, at, causal, frozen))
        if not frozen and positions == "seq":
            dense.position += len(x)


# ---------------------------------------------------------------------------------------------------------------- failures


def state(context: Context) -> tuple[int, int, list[int]]:
    return context.length, context.position, list(context.pages)


def test_an_exception_leaves_every_context_as_it_was() -> None:
    engine = make()
    a, b, dense = Context(engine.pool), Context(engine.pool), Dense()
    x = rows(6, 1)
    engine.call(PROBE.forward, READ, [Call((x,), (a,), 6)])
    dense_run(NET, dense, x, seq(dense, 6), True, False)
    dense.position = 6
    a.reserve(9)
    before, free = (state(a), state(b)), engine.pool.free_pages

    def broken(run: Any, x: torch.Tensor) -> torch.Tensor:
        PROBE.forward(run, x * float("nan"))  # NaN keys and values reach the pages
        raise RuntimeError("boom")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="boom"):
            engine.call(broken, READ, [Call((rows(9, 2),), (a,), 9), Call((rows(30, 3),), (b,), 30)])
        assert (state(a), state(b)) == before
        assert engine.pool.free_pages == free
    engine.call(PROBE.forward, READ, [Call((rows(12, 5),), (b,), 12)])
    y = rows(1, 4)  # padded to the length of `b`, over the rows that the failed call has left
    (found,) = engine.call(PROBE.forward, READ, [Call((y,), (a,), 1), Call((y,), (b,), 1)])
    close(found[0], dense_run(NET, dense, y, seq(dense, 1), True, False))


def test_nan_of_one_request_reaches_no_other() -> None:
    engine = make(pages=12)
    a, b = Context(engine.pool), Context(engine.pool)
    engine.call(
        PROBE.tail,
        OpSpec("n.t", ("packed",)),
        [Call((rows(9, 1) * float("nan"),), (a,), 9), Call((rows(2, 2),), (b,), 2)],
    )
    (tails,) = engine.call(PROBE.tail, STEP, [Call((1,), (a,), 1), Call((1,), (b,), 1)])
    assert tails[0].isnan().all() and tails[1].isfinite().all()
    a.drop()
    c = Context(engine.pool)  # gets pages that held NaN
    engine.call(PROBE.tail, OpSpec("n.t", ("packed",)), [Call((rows(6, 3),), (c,), 6)])
    (tails,) = engine.call(PROBE.tail, STEP, [Call((1,), (c,), 1), Call((1,), (b,), 1)])
    assert tails.isfinite().all()


def test_a_full_pool_fails_the_call_and_holds_nothing_back() -> None:
    engine = make(pages=5)
    a, b = Context(engine.pool), Context(engine.pool)
    with pytest.raises(OutOfPages, match="2 pages wanted, 1 of 5 are free"):
        engine.call(PROBE.forward, READ, [Call((rows(16, 1),), (a,), 16), Call((rows(8, 2),), (b,), 8)])
    assert engine.pool.free_pages == 5
    engine.call(PROBE.forward, READ, [Call((rows(16, 1),), (a,), 16)])
    fork = a.fork()
    (found,) = engine.call(PROBE.forward, READ, [Call((rows(4, 1),), (fork,), 4)])
    assert found[0].isfinite().all() and engine.pool.free_pages == 0


def test_broken_rules_are_named() -> None:
    engine = make()
    a = Context(engine.pool)
    x = rows(3, 1)
    with pytest.raises(EngineError, match="one context twice"):
        engine.call(PROBE.forward, READ, [Call((x,), (a,), 3), Call((x,), (a,), 3)])
    with pytest.raises(EngineError, match="0 entries"):
        engine.call(PROBE.forward, READ, [Call((x[:0],), (a,), 0)])
    with pytest.raises(EngineError, match="takes 1 arguments, got 2"):
        engine.call(PROBE.forward, READ, [Call((x, x), (a,), 3)])
    with pytest.raises(EngineError, match="another cache"):
        engine.call(PROBE.forward, READ, [Call((x,), (Context(make().pool),), 3)])
    with pytest.raises(EngineError, match="offsets and an advance"):
        engine.call(PROBE.forward, OpSpec("n.at", ("packed",), positions="at"), [Call((x,), (a,), 3)])
    with pytest.raises(EngineError, match=r"did not write layers \[0, 1\]"):
        engine.call(lambda run, x: x, READ, [Call((x,), (a,), 3)])
    with pytest.raises(EngineError, match="gives 1 results, the op has 2"):
        engine.call(PROBE.forward, OpSpec("n.r", ("packed",), ("row", "row")), [Call((x,), (a,), 3)])
    with pytest.raises(EngineError, match=r"is \[3, 10\], expected 1 rows"):
        engine.call(PROBE.forward, OpSpec("n.r", ("packed",)), [Call((x,), (a,), 3)])
    with pytest.raises(EngineError, match=r"k of layer 0 is \[3, 2, 6\], expected \[4, 2, 6\]"):
        engine.call(PROBE.listen, OpSpec("n.l", ("packed",), ()), [Call((x,), (a,), 4)])
    with pytest.raises(EngineError, match="writes layer 0 twice"):
        engine.call(lambda run, x: [PROBE.listen(run, x)] * 2 and PROBE.listen(run, x), READ, [Call((x,), (a,), 3)])
    with pytest.raises(EngineError, match="is frozen but its component writes"):
        engine.call(PROBE.listen, OpSpec("n.l", ("packed",), (), frozen=True), [Call((x,), (a,), 3)])
    with pytest.raises(EngineError, match="absent in 1 of 2"):
        engine.call(PROBE.forward, READ, [Call((x,), (a,), 3), Call((None,), (Context(engine.pool),), 3)])
    assert state(a) == (0, 0, []) and engine.pool.free_pages == engine.pool.total_pages


def test_arguments_arrive_as_their_kinds_say() -> None:
    engine = make()
    a, b = Context(engine.pool), Context(engine.pool)
    seen: list[Any] = []

    def method(run: Any, *args: Any) -> torch.Tensor:
        seen.extend(args)
        return PROBE.tail(run, args[1])

    spec = OpSpec("n.m", ("scalar", "packed", "plain", "host", "plain"))
    calls = [
        Call((torch.tensor(4), rows(2, 1), torch.ones(3), "x", None), (a,), 2),
        Call((5, rows(3, 2), torch.zeros(3), "y", None), (b,), 3),
    ]
    engine.call(method, spec, calls)
    assert seen[0].tolist() == [4, 5] and seen[0].dtype == torch.int64
    assert seen[1].shape == (5, WIDTH) and seen[2].shape == (2, 3)
    assert seen[3] == ["x", "y"] and seen[4] is None
