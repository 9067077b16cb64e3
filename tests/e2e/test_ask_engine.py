"""The ask model on worker processes, with real weights: equal results on every path, overlap, and fairness."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch

from mstarc.interp import interpret
from mstarc.workspace import load_model
from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.checkpoints import Externs, find_checkpoint
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.models.hibari.voice import Voice
from mstarc_runtime.program import Part
from tests.e2e.harness import ASK, ROOT, SPEECH, collect, linked, needs_weights, processes, user
from tests.interp.component_machine import ComponentMachine

pytestmark = [pytest.mark.weights, needs_weights, pytest.mark.asyncio(loop_scope="module")]

QUESTIONS = (
    "Hi.",
    "What is the capital of France?",
    "Name three colours, and say why you like each of them.",
    "Write one sentence about the sea; make it long, and put at least two commas into it, please.",
    "What is 17 + 4?",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_rank() -> AsyncIterator[Engine]:
    async with processes(linked(ASK, "1xcpu")) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two_ranks() -> AsyncIterator[Engine]:
    async with processes(linked(ASK, "2xcpu")) as engine:
        yield engine


async def ask(engine: Engine, text: str, tokens: int, audio: bool = True, **params: Any) -> dict[str, list[Any]]:
    wants = {"text", "audio"} if audio else {"text"}
    run = await engine.submit("chat", {"messages": user(text)}, {"max_tokens": tokens, **params}, wants, seed=7)
    return await collect(run)


def interpreted(program: Linked, text: str, tokens: int, **params: Any) -> Any:
    model = load_model(ROOT / "specs" / "ask.walk").program
    assert model is not None
    return interpret(
        model,
        ComponentMachine.of_linked(program),
        {"messages": user(text)},
        request="chat",
        params={"max_tokens": tokens, **params},
        wants={"text", "audio"},
        seed=7,
    )


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.1}], ids=["greedy", "drawn"]
)
async def test_one_rank_two_ranks_and_the_interpreter_agree(
    one_rank: Engine, two_ranks: Engine, params: dict[str, Any]
) -> None:
    question = QUESTIONS[2]
    one = await ask(one_rank, question, 24, **params)
    two = await ask(two_ranks, question, 24, **params)
    told = await asyncio.to_thread(interpreted, one_rank.linked, question, 24, **params)
    assert one["text"] == two["text"] == [int(token) for token in told.emitted("text")]
    voices = [np.concatenate(found) for found in (one["audio"], two["audio"])]
    oracle = np.concatenate([np.asarray(chunk) for chunk in told.emitted("audio")])
    assert len(voices[0]) > 24000
    assert np.array_equal(voices[0], voices[1])
    assert len(oracle) == len(voices[0])
    assert np.abs(oracle - voices[0]).max() <= 1 / 32768


async def test_batched_with_others_as_alone(one_rank: Engine) -> None:
    alone = [(await ask(one_rank, question, 12, audio=False))["text"] for question in QUESTIONS]
    together = await asyncio.gather(*[ask(one_rank, question, 12, audio=False) for question in QUESTIONS])
    assert [found["text"] for found in together] == alone


async def test_streamed_speech_is_the_speech_of_the_phrases(one_rank: Engine) -> None:
    found = await ask(one_rank, QUESTIONS[3], 48)
    externs = Externs(one_rank.linked)
    (checkpoint,) = (find_checkpoint(link) for link in one_rank.linked.checkpoints if link.name == "hibari")
    voice = Voice.load(checkpoint, {}, "cpu")
    phrases: list[list[int]] = [[]]
    state = None
    for token in found["text"]:
        state, cut = externs["cut"](state, token)
        phrases[-1].append(token)
        if cut or len(phrases[-1]) == 64:
            phrases.append([])
    spoken = []
    for phrase in filter(None, phrases):
        ids = torch.from_numpy(externs["phonemes"](np.asarray(phrase)))
        spoken.append(voice.istft(voice.acoustic(ids, *voice.prosody(ids))).numpy())
    assert len(spoken) == len(found["audio"]) >= 2
    for streamed, whole in zip(found["audio"], spoken, strict=True):
        assert len(streamed) == len(whole)
        assert np.abs(streamed - whole).max() <= 1 / 32768


async def test_text_only_makes_no_speech(one_rank: Engine) -> None:
    found = await ask(one_rank, QUESTIONS[1], 12, audio=False)
    assert "audio" not in found and found["text"]


async def test_speech_begins_before_the_answer_is_written(two_ranks: Engine) -> None:
    found = await ask(two_ranks, "Tell me about the moon.", 60, ignore_eos=True)
    assert len(found["text"]) == 60
    order = found["order"]
    assert order.index("audio") < len(order) - 1 - order[::-1].index("text")


async def test_a_spoken_question_does_not_stop_a_running_answer(one_rank: Engine) -> None:
    """Events of both requests in one list: tokens of the first go on between what the ears do for the second."""
    order: list[str] = []

    async def watch(run: Any, name: str) -> None:
        async for event in run.events():
            order.append(f"{name} {event.modality}")

    first = await one_rank.submit(
        "chat", {"messages": user("Tell me a story.")}, {"max_tokens": 80, "ignore_eos": True}, {"text"}
    )
    watching = asyncio.create_task(watch(first, "first"))
    while order.count("first text") < 5:
        await asyncio.sleep(0.01)
    sound = Part("audio", role="user", data=SPEECH.read_bytes(), format="flac")
    second = await one_rank.submit("chat", {"messages": [sound]}, {"max_tokens": 8}, {"text"})
    before = order.count("first text")
    await watch(second, "second")
    await watching
    begins = order.index("second text")
    between = order[:begins].count("first text") - before
    assert between >= 5, f"only {between} tokens of the running answer came while the question was heard"
    both = order[begins : len(order) - 1 - order[::-1].index("second text")]
    assert "first text" in both


async def test_hears_the_question(one_rank: Engine) -> None:
    sound = Part("audio", role="user", data=SPEECH.read_bytes(), format="flac")
    run = await one_rank.submit("chat", {"messages": [sound]}, {"max_tokens": 4}, {"text"})
    found = await collect(run)
    assert run.outcome.causes["hear.writing"] == "stop"
    assert len(found["text"]) <= 4
    assert run.outcome.counts["context:main"] > run.outcome.counts["hear.writing"] > 5
