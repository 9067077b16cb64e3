"""`/health`, `/ready`, `/v1/models`, `/metrics`: what they say while the ranks load, run, are lost, and are gone."""

from __future__ import annotations

import asyncio

from tests.serving import parrot
from tests.serving.parrot import Harness, Turn, harness


async def test_loading_then_ready() -> None:
    made, rank = parrot.engine()
    rank.load = asyncio.Event()
    h = Harness(made, rank)
    starting = asyncio.create_task(made.start(h.service.note_loading))
    await asyncio.sleep(0)
    try:
        assert (await h.http.get("/health")).status_code == 200
        loading = await h.http.get("/ready")
        assert loading.status_code == 503
        assert loading.json() == {"ready": False, "reason": "loading: rank 0: feathers (1 of 3)"}
        early = await h.chat("a")
        assert early.status_code == 503
        assert early.headers["retry-after"]
        assert "feathers" in early.json()["error"]["message"]
        assert await h.metric("mstarc_ready") == 0
        rank.load.set()
        await starting
        assert (await h.http.get("/ready")).json() == {"ready": True}
        assert await h.metric("mstarc_ready") == 1
        assert (await h.chat("a")).status_code == 200
    finally:
        await made.stop()


async def test_a_lost_rank_fails_its_requests_at_once_and_comes_back() -> None:
    started = asyncio.Event()

    async def hang(turn: Turn) -> None:
        turn.say("so")
        started.set()
        await asyncio.Event().wait()

    async with harness(hang) as h:
        assert (await h.http.get("/ready")).status_code == 200
        hanging = asyncio.create_task(h.chat("a"))
        await started.wait()
        h.rank.lose(0, "it was killed by signal 9")
        response = await asyncio.wait_for(hanging, 5)
        assert response.status_code == 503
        assert "worker 0 was lost" in response.json()["error"]["message"]
        assert (await h.http.get("/ready")).status_code == 503
        assert (await h.chat("a")).json()["error"]["message"] == "not up: rank 0"
        h.rank.script = parrot.parrot
        h.rank.ready()
        assert (await h.http.get("/ready")).status_code == 200
        assert (await h.chat("again")).status_code == 200
        assert await h.metric('mstarc_conductor_events_total{event="restarts"}') == 1


async def test_models() -> None:
    async with harness() as h:
        listed = (await h.http.get("/v1/models")).json()
        one = (await h.http.get("/v1/models/parrot")).json()
        other = await h.http.get("/v1/models/gpt-4o")
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["parrot"]
    assert listed["data"] == [one]
    assert one["object"] == "model"
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")


async def test_metrics() -> None:
    async with harness() as h:
        await h.chat("hello")
        await h.chat("hello", max_tokens=-1)
        found = await h.http.get("/metrics")
    assert found.headers["content-type"].startswith("text/plain")
    lines = found.text.splitlines()
    assert 'mstarc_requests_total{outcome="ok",request="chat"} 1.0' in lines
    assert 'mstarc_requests_total{outcome="refused",request="chat"} 1.0' in lines
    assert 'mstarc_rank_pages_used{rank="0"} 7.0' in lines
    assert 'mstarc_tokens_total{kind="prompt"} 5.0' in lines
    assert 'mstarc_tokens_total{kind="completion"} 5.0' in lines
    assert "mstarc_first_token_seconds_count 1.0" in lines
    assert "mstarc_first_audio_seconds_count 0.0" in lines


async def test_stopping_the_engine_is_no_499() -> None:
    """499 means that nobody reads the answer; a client that does gets 503."""
    started = asyncio.Event()

    async def hang(turn: Turn) -> None:
        started.set()
        await asyncio.Event().wait()

    async with harness(hang) as h:
        hanging = asyncio.create_task(h.chat("a"))
        await started.wait()
        await h.engine.stop()
        assert (await hanging).status_code == 503
        assert (await h.http.get("/ready")).json()["reason"] == "the server is shutting down"
