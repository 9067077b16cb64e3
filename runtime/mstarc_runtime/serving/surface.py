"""What of a model the chat, speech and action endpoints show: read once from the linked program's `modalities` and `chat` sections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.checkpoints import Externs, bound_by
from mstarc_runtime.errors import LoadError
from mstarc_runtime.program import ConductorProgram, Entry, Param
from mstarc_runtime.serving.text import TextDecoder


@dataclass(frozen=True, slots=True)
class Surface:
    """The request that chat runs and how its outputs are shown."""

    entry: Entry
    input: str  # the input that takes the messages
    audio_input: bool
    params: Mapping[str, Param]
    decoder: Callable[[], TextDecoder] | None  # for text that is emitted as token ids
    finish: str  # "<walk>.<loop>" whose cause is the finish_reason; "" = always `stop`
    usage: str  # context whose entries are prompt and answer; "" = not known
    rate: int  # of audio, Hz
    voices: tuple[str, ...]  # () = the model has one voice and takes any name for it

    @property
    def outputs(self) -> frozenset[str]:
        return frozenset(modality for modality, _ in self.entry.outputs)


def chat_surface(linked: Linked, program: ConductorProgram, externs: Externs) -> Surface | None:
    """The model's chat surface; None if it declares none. Raises LoadError if the declaration does not fit the program."""
    sections = msgspec.to_builtins(linked)
    chat: Mapping[str, Any] = sections.get("chat") or linked.modalities.get("chat") or {}
    if not chat:
        return None
    entry = next((entry for entry in program.ENTRIES if entry.name == chat.get("request")), None)
    if entry is None:
        raise LoadError(f"`chat.request` names `{chat.get('request')}`, which is no request of `{linked.model}`")
    if chat.get("input") not in {item.name for item in entry.inputs}:
        raise LoadError(f"`chat.input` names `{chat.get('input')}`, which is no input of `{entry.name}`")
    text: Mapping[str, Any] = linked.modalities.get("text") or {}
    audio: Mapping[str, Any] = linked.modalities.get("audio") or {}
    return Surface(
        entry=entry,
        input=str(chat["input"]),
        audio_input=bool(chat.get("audio_input", False)),
        params={param.name: param for param in program.PARAMS},
        decoder=text_decoder(linked, externs),
        finish=str(text.get("finish", "")),
        usage=str(text.get("usage", "")),
        rate=int(audio.get("rate", 24000)),
        voices=tuple(audio.get("voices", ())),
    )


def text_decoder(linked: Linked, externs: Externs) -> Callable[[], TextDecoder] | None:
    """What makes a decoder for one request's token ids; None if the model names none."""
    text: Mapping[str, Any] = linked.modalities.get("text") or {}
    if not text.get("decoder"):
        return None
    with bound_by("modalities.text.decoder"):
        return externs.bind(text["decoder"])


@dataclass(frozen=True, slots=True)
class Speech:
    """The request that speaks a text. `voice`: the param that takes the voice, "" if the model has one voice.

    `finish` is the loop whose iterations are the ids of the audio, `usage` the context that they and the prompt stand in; "" if the
    binding does not say.
    """

    entry: Entry
    surface: Surface
    voice: str
    finish: str
    usage: str


def speech_surface(linked: Linked, program: ConductorProgram) -> Speech | None:
    """What `/v1/audio/speech` runs; None if the binding does not say. Raises LoadError if it does not fit the program."""
    audio: Mapping[str, Any] = linked.modalities.get("audio") or {}
    if "request" not in audio:
        return None
    entry = next((entry for entry in program.ENTRIES if entry.name == audio["request"]), None)
    if entry is None or "audio" not in dict(entry.outputs):
        raise LoadError(f"`modalities.audio.request` names `{audio['request']}`, which is no request that gives audio")
    if (audio.get("input"), "text") not in {(item.name, item.kind) for item in entry.inputs}:
        raise LoadError(
            f"`modalities.audio.input` names `{audio.get('input')}`, which is no text that `{entry.name}` takes"
        )
    params, voice = {param.name: param for param in program.PARAMS}, str(audio.get("voice", ""))
    if voice and voice not in params:
        raise LoadError(f"`modalities.audio.voice` names `{voice}`, which is no param of `{linked.model}`")
    voices = params[voice].members if voice and params[voice].members else tuple(audio.get("voices", ()))
    surface = Surface(entry, str(audio["input"]), False, params, None, "", "", int(audio.get("rate", 24000)), voices)
    return Speech(entry, surface, voice, str(audio.get("finish", "")), str(audio.get("usage", "")))


@dataclass(frozen=True, slots=True)
class Policy:
    """The request that a robot's observation runs.

    `observe` makes its inputs of an observation, `units` the robot's actions of the chunk that it emits, `robot` what a client is
    told of cameras, state and actions.
    """

    entry: Entry
    observe: Callable[[Mapping[str, Any]], dict[str, Any]]
    units: Callable[[Any], Any]
    robot: Callable[[], Mapping[str, Any]]


def policy_surface(linked: Linked, program: ConductorProgram, externs: Externs) -> Policy | None:
    """What `/v1/actions` serves; None if the binding does not say. Raises LoadError if it does not fit the program."""
    action: Mapping[str, Any] = linked.modalities.get("action") or {}
    if not action:
        return None
    missing = [key for key in ("request", "observe", "units", "robot") if not isinstance(action.get(key), str)]
    if missing:
        raise LoadError(f"`modalities.action` of `{linked.model}` lacks {', '.join(missing)}")
    entry = next((entry for entry in program.ENTRIES if entry.name == action["request"]), None)
    if entry is None or ("action", False) not in entry.outputs:
        raise LoadError(
            f"`modalities.action.request` names `{action['request']}`, which is no request that gives actions"
        )
    return Policy(entry, *(externs.bind(action[key]) for key in ("observe", "units", "robot")))
