"""What clients may send, as strict pydantic models, and refusals that name the field by its path (`messages[0].content[1].type`).

A field of OpenAI's API that this server does not implement is refused by name unless it is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from mstarc_runtime.errors import BadRequest

_TEXT, _MANY = "<text>", "<list>"  # tags of unions; they show up in pydantic's error paths and are left out of ours

#: fields of OpenAI's chat request that are refused unless null
UNSUPPORTED = frozenset(
    {
        *("function_call", "functions", "logit_bias", "moderation", "parallel_tool_calls", "prediction"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort", "response_format"),
        *("service_tier", "store", "tool_choice", "tools", "top_logprobs", "verbosity", "web_search_options"),
    }
)
#: fields of OpenAI's speech request that are refused unless null
_UNSUPPORTED_IN_SPEECH = frozenset({"instructions"})
#: params of a model that OpenAI's requests may set, all of the same name
MODEL_PARAMS = ("max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "ignore_eos")
_UNSUPPORTED_IN_MESSAGE = frozenset({"audio", "function_call", "name", "refusal", "tool_call_id", "tool_calls"})


def _text_or_many(value: Any) -> str | None:
    return _TEXT if isinstance(value, str) else _MANY if isinstance(value, list) else None


def _text_or_object(value: Any) -> str | None:
    return _TEXT if isinstance(value, str) else _MANY if isinstance(value, dict | VoiceId) else None


class Strict(BaseModel):
    """No conversions, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


def _drop_nulls(given: Any, names: frozenset[str]) -> Any:
    """A field that is not supported may be there if it is null."""
    if not isinstance(given, dict):
        return given
    return {name: value for name, value in given.items() if value is not None or name not in names}


class InputAudio(Strict):
    """A recording: base64 of a file of that format, or of raw 24 kHz mono samples for pcm16."""

    data: str
    format: Literal["wav", "mp3", "flac", "ogg", "pcm16"]


class ContentPart(Strict):
    """A part of a message."""

    type: Literal["text", "input_audio"]
    text: str | None = None
    input_audio: InputAudio | None = None

    @model_validator(mode="after")
    def _matches_type(self) -> ContentPart:
        for name in ("text", "input_audio"):
            if (getattr(self, name) is not None) != (self.type == name):
                raise _at(name, "is required" if self.type == name else f"does not go with type `{self.type}`")
        return self


Content = Annotated[Annotated[str, Tag(_TEXT)] | Annotated[list[ContentPart], Tag(_MANY)], Discriminator(_text_or_many)]


class Message(Strict):
    """One turn of the conversation."""

    role: Literal["developer", "system", "user", "assistant"]
    content: Content
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None  # empty in answers that clients send back

    @model_validator(mode="before")
    @classmethod
    def _nulls(cls, given: Any) -> Any:
        return _drop_nulls(given, _UNSUPPORTED_IN_MESSAGE)

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        silent = isinstance(self.content, list) and all(part.text == "" for part in self.content)
        if self.role == "user" and (not self.content or silent):
            raise _at("content", "is empty")
        if isinstance(self.content, list) and self.role != "user":
            for index, part in enumerate(self.content):
                if part.type != "text":
                    raise _at(f"content[{index}].type", f"must be `text` in a message of the {self.role}")
        return self


class AudioOut(Strict):
    """How audio is to be sent."""

    voice: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    format: Literal["wav", "pcm16"]


class StreamOptions(Strict):
    """What a streamed answer holds beside its pieces."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


_Stop = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class ChatRequest(Strict):
    """`POST /v1/chat/completions`. Ranges of model parameters are those of the model's spec and are checked there."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    modalities: Annotated[list[Literal["text", "audio"]], Field(min_length=1)] | None = None
    audio: AudioOut | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: (
        Annotated[
            Annotated[_Stop, Tag(_TEXT)] | Annotated[list[_Stop], Field(max_length=4), Tag(_MANY)],
            Discriminator(_text_or_many),
        ]
        | None
    ) = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logprobs: Literal[False] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _nulls(cls, given: Any) -> Any:
        return _drop_nulls(given, UNSUPPORTED)

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
        if self.stream_options is not None and not self.stream:
            raise _at("stream_options", "needs `stream`: true")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise _at("max_tokens", "and `max_completion_tokens` exclude each other")
        if not self.wants_audio:
            if self.audio is not None:
                raise _at("audio", 'needs "audio" in `modalities`')
            return self
        if self.modalities is not None and "text" not in self.modalities:
            raise _at("modalities", 'must be ["text"] or ["text", "audio"]')
        if self.audio is None:
            raise _at("audio", "is required if `modalities` has audio")
        if self.stream and self.audio.format != "pcm16":
            raise _at("audio.format", "must be `pcm16` if `stream` is true")
        if self.stops:
            raise _at("stop", "is not supported together with audio")
        return self

    @property
    def wants_audio(self) -> bool:
        return self.modalities is not None and "audio" in self.modalities

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


_Name = Annotated[str, StringConstraints(min_length=1, max_length=64)]


class VoiceId(Strict):
    """A voice by its id."""

    id: _Name


class SpeechRequest(Strict):
    """`POST /v1/audio/speech`. Ranges of model parameters are those of the model's spec and are checked there."""

    model: str
    input: Annotated[str, StringConstraints(min_length=1)]
    voice: Annotated[Annotated[_Name, Tag(_TEXT)] | Annotated[VoiceId, Tag(_MANY)], Discriminator(_text_or_object)]
    response_format: Literal["wav", "pcm"] | None = None
    stream_format: Literal["audio", "sse"] | None = None
    speed: Annotated[float, Field(ge=1, le=1)] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _nulls(cls, given: Any) -> Any:
        return _drop_nulls(given, _UNSUPPORTED_IN_SPEECH)

    @property
    def voice_name(self) -> str:
        return self.voice if isinstance(self.voice, str) else self.voice.id

    @property
    def format(self) -> Literal["wav", "pcm"]:
        return self.response_format or "wav"


class WalkRequest(Strict):
    """`POST /v1/walks/<request>`: inputs and params by their names in the spec, the wanted output modalities."""

    inputs: dict[str, Any] = {}
    params: dict[str, Any] = {}
    wants: list[str] = []
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool = False
    tensors: Literal["list", "base64"] = "list"


class ActionOptions(Strict):
    """What a message to `/v1/actions` may hold besides the observation."""

    params: dict[str, Any] = {}
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    tensors: Literal["list", "base64"] = "list"


Model = TypeVar("Model", bound=Strict)


def validate(model: type[Model], given: Mapping[str, Any]) -> Model:
    """A parsed body as a model. Raises BadRequest that names the first wrong field."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise _refusal(model, error) from None


def _at(field: str, text: str) -> PydanticCustomError:
    """An error of a whole model that is about one of its fields."""
    return PydanticCustomError("at", "{text}", {"text": text, "field": field})


def _refusal(model: type[Strict], error: ValidationError) -> BadRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    context = first.get("ctx", {})
    path = _path(first["loc"])
    if first["type"] == "at":
        path = f"{path}.{context['field']}" if path else str(context["field"])
    return BadRequest(f"`{path}` {_text(model, first, path)}", path)


def _path(places: tuple[int | str, ...]) -> str:
    path = ""
    for place in places:
        if isinstance(place, int):
            path += f"[{place}]"
        elif place not in (_TEXT, _MANY):
            path += f".{place[:80]}" if path else place[:80]
    return path


def _text(model: type[Strict], first: Mapping[str, Any], path: str) -> str:
    context = first.get("ctx", {})
    match first["type"]:
        case "at":
            return str(context["text"])
        case "missing":
            return "is required"
        case "extra_forbidden":
            return _unknown(model, path)
        case "union_tag_not_found":
            return f"must be text or {'an object with an `id`' if model is SpeechRequest else 'a list'}"
        case "literal_error":
            return f"must be {context['expected']}"
        case "greater_than_equal" | "less_than_equal" if context.get("ge", context.get("le")) in (0, 1):
            return f"must be {context.get('ge', context.get('le')):g}; other values are not supported"
        case _:
            return f"is wrong: {first['msg'][:1].lower()}{first['msg'][1:]}"


def _unknown(model: type[Strict], path: str) -> str:
    """Why a field is not taken: known to OpenAI's API but not here, or not known at all."""
    name = path.rpartition(".")[2]
    known = UNSUPPORTED if path == name else _UNSUPPORTED_IN_MESSAGE
    if (model is ChatRequest and name in known) or (model is SpeechRequest and path in _UNSUPPORTED_IN_SPEECH):
        return "is not supported"
    near = get_close_matches(name, sorted(model.model_fields), n=1) if path == name else []
    return "is not a field of this request" + (f"; did you mean `{near[0]}`?" if near else "")
