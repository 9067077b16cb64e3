"""What the shipped specs mean, against facts of the reference implementations: lengths, positions, draws, chunks and branches.

The numbers of entries and positions are those that the reference implementations report for the same inputs.
"""

from __future__ import annotations

from typing import Any

import pytest

from mstarc.interp import RequestRefused
from mstarc.interp.hash_machine import Row
from tests.specs.shipped import Ran, box, ids, model, part, play

# --------------------------------------------------------------------------------------------------------------- bagel

ROWS_12 = {"large": (48, 64), "small": (42, 56)}  # an image of 12 rows for either encoder: 14 entries with its marks
ROWS_8 = {"large": (64, 32), "small": (56, 28)}
BOS, EOS = 151644, 151645


def bagel(*layout: int | dict[str, tuple[int, int]], wants: str = "image", thought: int = 0, **params: Any) -> Ran:
    """A request of texts (their length with bos and eos) and images; `thought`: ids drawn before eos, 0 = none is drawn."""

    def lay_out(parts: Any, think: bool) -> list[Any]:
        assert think == bool(params.get("think", False))
        return [
            part("text_part", ids=ids(item))
            if isinstance(item, int)
            else part("image_part", large=box(3, *item["large"]), small=box(3, *item["small"]))
            for item in layout
        ]

    parts = [part("text" if isinstance(item, int) else "image") for item in layout]
    externs = {
        "layout": lay_out,
        "canvas": lambda parts, height, width: (48, 64),
        "rewrap": lambda tokens: ids(len(tokens) + 2),
    }
    draws = {"words": [*range(10, 10 + thought), EOS]}
    return play("bagel", {"parts": parts}, draws=draws, externs=externs, params=params, wants=[wants])


@pytest.mark.parametrize(
    ("layout", "main", "no_text", "no_image"),
    [
        ((ROWS_12, 10), (38, 12), (28, 2), (10, 10)),
        ((ROWS_8, 7), (27, 9), (20, 2), (7, 7)),
        ((8, ROWS_12, 7), (43, 17), (36, 10), (15, 15)),
        ((8, ROWS_8), (28, 10), (28, 10), (8, 8)),
        ((ROWS_8, 6, ROWS_12, 8), (62, 18), (54, 10), (14, 14)),
    ],
)
def test_bagel_contexts_when_an_image_is_edited(
    layout: Any, main: tuple[int, int], no_text: tuple[int, int], no_image: tuple[int, int]
) -> None:
    contexts = bagel(*layout, steps=3).outcome.contexts
    assert (contexts["main"], contexts["no_text"], contexts["no_image"]) == (main, no_text, no_image)


def test_bagel_thinks_into_main_alone() -> None:
    thought = bagel(12, ROWS_12, 8, think=True, thought=14, steps=3).outcome
    assert [thought.contexts[name] for name in ("main", "no_text", "no_image")] == [(64, 38), (40, 14), (20, 20)]
    assert thought.contexts["draft"] == (0, 0)
    cut = bagel(12, 8, think=True, thought=20, max_tokens=7, steps=3).outcome
    assert (cut.contexts["main"], cut.contexts["no_text"]) == ((29, 29), (12, 12))
    assert cut.emitted("text") == list(range(10, 17))


@pytest.mark.parametrize(("layout", "main"), [((ROWS_12, 9), (23, 10)), ((7, ROWS_12, 7), (28, 15)), ((10,), (10, 10))])
def test_bagel_answers_from_main_alone(layout: Any, main: tuple[int, int]) -> None:
    ran = bagel(*layout, wants="text", thought=5)
    assert ran.outcome.contexts["main"] == main and not ran.machine.of("llm.latent")
    assert {name for name, state in ran.outcome.contexts.items() if state != (0, 0)} == {"main"}
    assert ran.outcome.emitted("text") == [10, 11, 12, 13, 14] and ran.outcome.finish_reason == "stop"
    assert [call.args for call in ran.machine.of("llm.step")] == [(BOS,), (10,), (11,), (12,), (13,), (14,)]


@pytest.mark.parametrize(
    ("layout", "params", "branches"),
    [
        ((11,), {}, 49 + 41),  # 49 steps; 41 of their shifted times lie in (0.4, 1]
        ((11,), {"cfg_text": 1.0}, 49),
        ((11,), {"cfg_text": 1.0, "cfg_img": 2.0}, 49),  # image guidance exists only inside text guidance
        ((11,), {"cfg_img": 2.0}, 49 + 2 * 41),
        ((ROWS_12, 10), {}, 3 * 49),
        ((ROWS_12, 10), {"cfg_img": 1.0}, 2 * 49),
        ((ROWS_12, 10), {"cfg_text": 1.0}, 49),
    ],
)
def test_bagel_branches(layout: Any, params: dict[str, float], branches: int) -> None:
    ran = bagel(*layout, **params)
    calls = ran.machine.of("llm.velocity")
    assert len(calls) == branches
    assert {call.takes for call in calls} == {14} and {len(set(call.positions)) for call in calls} == {1}
    times = [call.args[1] for call in calls]
    assert times == sorted(times, reverse=True) and times[0] == 1.0 and len(set(times)) == 49


def test_bagel_refuses_a_size_off_the_grid() -> None:
    with pytest.raises(RequestRefused, match="height"):
        bagel(11, height=100)


# ------------------------------------------------------------------------------------------------------------- orpheus


def test_orpheus_windows_hold_audio_ids_alone() -> None:
    first, end = 128266, 128258
    drawn = [first + k for k in range(33)]
    drawn[5:5] = [1000]  # a text id: never an item
    externs = {"tokenize": lambda text, voice: ids(9)}
    draws = {"speech": [*drawn, end, first]}
    ran = play("orpheus", {"text": "hello"}, draws=draws, externs=externs)
    windows = [list(call.args[0]) for call in ran.machine.of("snac.decode")]
    codes = [token for token in drawn if token >= first]
    assert windows == [codes[:28]]  # 33 codes: a second window would need 35
    assert len(ran.outcome.emitted("audio")) == 1 and ran.outcome.finish_reason == "stop"
    assert ran.outcome.contexts["main"] == (9 + 34, 9 + 34)  # the end id is never run
    last = ran.machine.states[-1]
    assert last.settings["repetition_penalty"] == 1.3 and last.over == [*range(1, 10), *drawn] == [
        *range(1, 10),
        *last.own,
    ]


def test_orpheus_tests_the_first_id_and_goes_on_if_told_to() -> None:
    externs = {"tokenize": lambda text, voice: ids(9)}
    silent = play("orpheus", {"text": ""}, draws={"speech": [128258]}, externs=externs)
    assert silent.outcome.events == () and silent.outcome.contexts["main"] == (9, 9)
    draws = {"speech": [128258] * 80}
    stubborn = play(
        "orpheus", {"text": ""}, draws=draws, externs=externs, params={"ignore_eos": True, "max_tokens": 70}
    )
    assert stubborn.outcome.finish_reason == "length" and stubborn.outcome.events == ()


# ---------------------------------------------------------------------------------------------------------- qwen3_omni

IM_END, TTS_EOS, CODEC_EOS = 151645, 151673, 2150


def omni(words: list[int], codes: list[int], *, audio: bool = True, order: int | None = None, **params: Any) -> Ran:
    """A prompt of 12 text tokens, a sound of 8 rows (10 entries), a picture of 6 rows at 3-D positions, and an opening text."""

    def view(rows: int, span: int) -> Any:
        return part("view", place=[list(range(rows))] * 3, span=span)

    def lay_out(parts: Any) -> tuple[list[Any], Any]:
        text = part("text_part", ids=ids(12), heard=ids(4), media=Row([False] * 4), view=view(4, 4))
        place = [[0, *[1] * 6, 4], [0, 1, 1, 2, 2, 3, 3, 4], [0, 1, 2, 1, 2, 1, 2, 4]]
        picture = part(
            "vision_part", pixels=box(24, 1536), grid=Row([1, 6, 4]), place=place, span=5,
            heard=ids(8), media=Row([True] * 8), view=view(8, 5),
        )  # fmt: skip
        tail = part("text_part", ids=ids(5), heard=ids(3), media=Row([False] * 3), view=view(3, 3))
        return [text, picture], tail

    externs = {"layout": lay_out, "speaker": lambda voice: 2302}
    draws = {"word": words, "layer0": codes}
    wants = ["text", "audio"] if audio else ["text"]
    return play("qwen3_omni", {"parts": []}, draws=draws, externs=externs, wants=wants, order=order, params=params)


@pytest.mark.parametrize("order", [None, 0, 1, 2])
def test_omni_speaks_what_it_writes(order: int | None) -> None:
    ran = omni([31, 32, 33, IM_END], [100, 101, 102, 103, 104, 105, CODEC_EOS], order=order)
    out, machine = ran.outcome, ran.machine
    assert out.emitted("text") == [31, 32, 33]
    assert out.contexts["mind"] == (
        12 + 8 + 5 + 3,
        12 + 5 + 5 + 3,
    )  # the end id is never run; a picture advances by its span
    assert out.contexts["mouth"] == (4 + 8 + 3 + 6 + 6, 4 + 5 + 3 + 6 + 6)
    (opened,), steps = machine.of("talker.open"), machine.of("talker.step")
    spoken = [machine.of("thinker.step")[k] for k in range(3)]
    assert [call.args[0] for call in spoken] == [31, 32, 33]
    assert [call.args[0] for call in machine.of("lexicon.row")] == [TTS_EOS]
    absent = [call.args[1] is None for call in steps]
    assert opened.args[0] is not None and absent == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]  # word, word, tts_eos, pad...
    assert len(machine.of("predictor.fill")) == 6  # the end code is neither filled nor sent
    assert [pcm.shape for pcm in out.emitted("audio")] == [(1920 * 6 - 555,)]


def test_omni_pieces_of_sound_join_without_a_seam() -> None:
    ran = omni([31, IM_END], [*range(100, 160), CODEC_EOS])
    decoded = [len(call.args[0]) for call in ran.machine.of("vocoder.decode")]
    assert decoded == [25, 50, 35]
    assert sum(len(pcm) for pcm in ran.outcome.emitted("audio")) == 1920 * 60 - 555 == 114645


def test_omni_shows_the_last_word_of_a_full_answer_but_neither_runs_nor_speaks_it() -> None:
    ran = omni([31, 32, 33], [100, CODEC_EOS], max_tokens=3)
    assert ran.outcome.emitted("text") == [31, 32, 33]
    assert [call.args[0] for call in ran.machine.of("thinker.step")] == [31, 32]
    frames = omni([31, IM_END], [100] * 9, talker_max_tokens=9)
    assert len(frames.machine.of("predictor.fill")) == 8  # of nine codes the last has no frame


def test_omni_without_speech_runs_the_thinker_alone() -> None:
    ran = omni([31, 32, IM_END], [], audio=False)
    assert ran.outcome.emitted("text") == [31, 32] and ran.outcome.contexts["mouth"] == (0, 0)
    assert {call.node for call in ran.machine.calls} <= {"thinker", "eye", "ear", "lexicon"}


def test_omni_layer_0_never_draws_a_control_code_but_the_end() -> None:
    ran = omni([31, IM_END], [100, 101, CODEC_EOS])
    layer0 = [state for state in ran.machine.states if state.name == "layer0"]
    assert set(layer0[0].settings["suppress"]) == {*range(2048, 3072)} - {CODEC_EOS}
    assert layer0[-1].settings["repetition_penalty"] == 1.05
    assert (layer0[-1].own, layer0[-1].over) == ([100, 101], [])  # its own draws alone


# ---------------------------------------------------------------------------------------------------------------- pi05


@pytest.mark.parametrize(("cameras", "steps"), [(3, 10), (2, 5)])
def test_pi05_reads_once_and_flows_without_writing(cameras: int, steps: int) -> None:
    externs = {"cameras": lambda images: box(cameras, 3, 224, 224), "prompt": lambda task, state: ids(13)}
    inputs = {"images": [part("image")], "task": "put it there"}
    ran = play("pi05", inputs, externs=externs, params={"flow_steps": steps})
    prefix = 256 * cameras + 13
    assert ran.outcome.contexts["prefix"] == (prefix, prefix)
    calls = ran.machine.of("llm.velocity")
    assert [call.args[1] for call in calls] == [1 - k / steps for k in range(steps)]
    assert {tuple(call.positions) for call in calls} == {tuple(range(prefix, prefix + 50))}
    assert [action.shape for action in ran.outcome.emitted("action")] == [(50, 32)]


# -------------------------------------------------------------------------------------------------------------- vjepa2


@pytest.mark.parametrize("live", [False, True])
def test_vjepa2_rolls_a_window_over_fixed_ids(live: bool) -> None:
    externs = {"clip": lambda video: box(8, 3, 256, 256), "after": lambda video, seconds, rate, frames: ids(256, 1536)}
    params = {"horizon": 3, "live": live}
    ran = play("vjepa2", {"video": box(3)}, externs=externs, request="rollout", params=params)
    calls = ran.machine.of("predictor.roll")
    assert {call.args[0].shape for call in calls} == {(1024, 1024)} and len({call.args[0].key for call in calls}) == 3
    assert {tuple(call.args[1]) for call in calls} == {tuple(range(1536, 1792))}
    assert [video.shape for video in ran.outcome.emitted("video")] == [(256, 1024)] * 3 if live else [(768, 1024)]


def test_vjepa2_predicts_what_the_masks_ask_for() -> None:
    externs = {"clip": lambda video: box(1, 3, 256, 256), "ids": lambda video, seen, wanted: (seen, wanted)}
    inputs = {"video": box(3), "context_mask": ids(40), "target_mask": ids(16, 900)}
    ran = play("vjepa2", inputs, externs=externs, request="predict")
    (call,) = ran.machine.of("predictor.predict")
    assert (call.args[0].shape, call.args[1], call.args[2]) == (
        (256, 1024),
        ids(40),
        ids(16, 900),
    )  # one frame fills a tubelet
    assert [video.shape for video in ran.outcome.emitted("video")] == [(16, 1024)]


# ----------------------------------------------------------------------------------------------------------- vjepa2_ac


@pytest.mark.parametrize("live", [False, True])
def test_vjepa2_ac_imagines_frame_by_frame(live: bool) -> None:
    externs = {"clip": lambda video: box(5, 3, 256, 256), "poses": lambda states, actions: box(6, 7, key=99)}
    inputs = {"video": box(3), "actions": box(6, 7), "states": box(1, 7)}
    params = {"horizon": 4, "live": live}
    ran = play("vjepa2_ac", inputs, externs=externs, request="rollout", params=params)
    assert ran.outcome.contexts["past"] == (4 * 258, 4)  # a frame is 258 entries at one position, its index
    calls = ran.machine.of("predictor.step")
    assert [(call.length, set(call.positions)) for call in calls] == [(258 * k, {k}) for k in range(4)]
    poses = box(6, 7, key=99)
    assert [call.args[2].key for call in calls] == [poses[k].key for k in range(4)]
    (encoded,) = ran.machine.of("encoder.frames")
    assert encoded.args[0].shape[0] == 1  # only the first frame is looked at
    shapes = [video.shape for video in ran.outcome.emitted("video")]
    assert shapes == ([(256, 1408)] * 4 if live else [(4 * 256, 1408)])


def test_vjepa2_ac_needs_an_action_for_each_step() -> None:
    inputs = {"video": box(3), "actions": box(3, 7), "states": box(3, 7)}
    with pytest.raises(RequestRefused, match="horizon"):
        play("vjepa2_ac", inputs, request="rollout", params={"horizon": 4})


def test_vjepa2_ac_scores_candidates_in_one_pass() -> None:
    externs = {"clip": lambda video: box(3, 3, 256, 256)}
    inputs = {"video": box(3), "actions": box(5, 3, 7), "states": box(5, 3, 7), "goal": box(256, 1408)}
    ran = play("vjepa2_ac", inputs, externs=externs, request="choose")
    assert len(ran.machine.of("critic.score")) == 1
    assert [event.modality for event in ran.outcome.events] == ["scalar", "tensor", "video"]
    assert ran.outcome.emitted("video")[0].shape == (5, 256, 1408)


# ------------------------------------------------------------------------------------------------------------- whisper


def whisper(windows: int, scribbled: list[int], openers: list[int], **params: Any) -> Ran:
    all_ = [part("window", mel=box(128, 3000, key=k)) for k in range(windows)]
    externs = {
        "prepare": lambda speech, language: (all_[0], all_, 50261),
        "opening": lambda tongue, task: Row([50258, tongue, 50360, 50364]),
    }
    draws = {"opener": openers, "scribbler": scribbled}
    return play("whisper", {"speech": box(3)}, draws=draws, externs=externs, params=params)


def test_whisper_tells_the_language_from_the_first_window_once() -> None:
    end = 50257
    ran = whisper(2, [11, end, end], [10, 20])
    assert ran.outcome.emitted("text") == [10, 11, 20]
    guessed = [state for state in ran.machine.states if state.name == "guess"]
    assert len(guessed) == 1
    (tongue,) = ran.outcome.draws["guess"]
    assert 50259 <= tongue < 50359  # whatever the logits are, it is a language
    forced = [call.args[0] for call in ran.machine.of("scribe.read")]
    assert forced == [Row([50258, tongue, 50360, 50364])] * 2
    assert {tuple(call.positions) for call in ran.machine.of("scribe.read")} == {(0, 1, 2, 3)}  # anew in each window
    assert len(ran.machine.of("ears.encode")) == 3


def test_whisper_takes_the_language_it_is_told() -> None:
    ran = whisper(1, [11, 50257], [10], language="de")
    assert [call.args[0] for call in ran.machine.of("scribe.read")] == [Row([50258, 50261, 50360, 50364])]
    assert "guess" not in {state.name for state in ran.machine.states}


def test_whisper_suppresses_the_end_at_the_first_id_only() -> None:
    ran = whisper(1, [11, 50257], [10], language="de")
    first, later, _ = (set(state.settings["suppress"]) for state in ran.machine.states)
    assert first - later == {220, 50257} and not later - first
    assert {50258, 50359, 50360, 50363} <= later and 50364 not in later


def test_whisper_stops_at_the_last_position() -> None:
    ran = whisper(1, [11] * 500, [10], language="de")
    assert len(ran.outcome.emitted("text")) == 444 and ran.outcome.contexts["said"] == (448, 448)
    assert ran.outcome.finish_reason == "length"


def test_whisper_geometry_is_that_of_the_binding() -> None:
    config = model("whisper")[1]
    assert config["scribe"]["decoder_heads"] * config["scribe"]["head_dim"] == config["ears"]["d_model"]
    assert config["scribe"]["language_ids"] == list(range(50259, 50359))
