"""The conductor of `qwen3_omni`: a coroutine per request and arm. Written by mstarc; do not edit."""

from typing import Any

from mstarc_runtime.program import ConductorProgram, Entry, Input, Need, Param, RequestRun, Steps


class Qwen3Omni(ConductorProgram):
    MODEL = "qwen3_omni"
    PARAMS = (
        Param("voice", "enum", default="ethan", members=("ethan", "chelsie", "aiden")),
        Param("max_tokens", "int", default=2048, low=1, high=32768),
        Param("ignore_eos", "bool", default=False),
        Param("thinker_temperature", "float", default=0.7, low=0.0, high=2.0),
        Param("thinker_top_p", "float", default=0.9, low=0.0, high=1.0),
        Param("talker_max_tokens", "int", default=4096, low=2, high=8192),
        Param("talker_temperature", "float", default=0.9, low=0.0, high=2.0),
        Param("talker_top_k", "int", default=50, low=0, high=1000),
        Param("talker_top_p", "float", default=1.0, low=0.0, high=1.0),
        Param("talker_repetition_penalty", "float", default=1.05, low=1.0, high=2.0),
        Param("predictor_temperature", "float", default=1.0, low=0.0, high=2.0),
        Param("predictor_top_k", "int", default=50, low=0, high=1000),
        Param("predictor_top_p", "float", default=0.8, low=0.0, high=1.0),
    )
    ENTRIES = (
        Entry(
            "chat",
            inputs=(Input("parts", "parts", members=("text", "audio", "image", "video")),),
            outputs=(("text", False), ("audio", True)),
        ),
    )
    ARMS = {
        "chat_thinking": (("media", "said", "states"), ()),
        "chat_talking": (("frames",), ("media", "said", "states")),
        "chat_sounding": ((), ("frames",)),
    }
    SWITCHED = ("mouth",)
    RESULTS = {"layout": 2, "speaker": 1}

    def chat(self, request: RequestRun) -> Steps:
        """request chat(parts: list(text | audio | image | video)) -> text, audio?"""
        prefix, tail = yield request.extern("layout", request.inputs.parts)
        yield request.together(
            thinking=self.chat_thinking(request, prefix, tail),
            talking=self.chat_talking(request, prefix, tail),
            sounding=self.chat_sounding(request),
        )
        return ()

    def chat_thinking(self, request: RequestRun, prefix: Any, tail: Any) -> Steps:
        """arm thinking"""
        for part in prefix:
            if part.kind == "text_part":
                yield request.start("read", part)
            elif part.kind == "audio_part":
                yield request.start("listen", part)
            elif part.kind == "vision_part":
                yield request.start("look", part)
        yield request.walk("answer", tail, closes=("media", "said", "states"))
        return ()

    def chat_talking(self, request: RequestRun, prefix: Any, tail: Any) -> Steps:
        """arm talking"""
        if self.let_speech(request):
            for part_4 in prefix:
                yield request.start("follow", part_4.view)
            yield request.start("follow", tail.view)
            yield request.walk("talk", closes=("frames",))
        return ()

    def chat_sounding(self, request: RequestRun) -> Steps:
        """arm sounding"""
        if self.let_speech(request):
            yield request.walk("vocode")
        return ()

    def read_need(self, request: RequestRun, need: Need, part: Any) -> None:
        """walk read writes at most"""
        rows_T = need.rows(part.ids)
        need.write("mind", rows_T)

    def listen_need(self, request: RequestRun, need: Need, part: Any) -> None:
        """walk listen writes at most"""
        need.write("mind", None)

    def look_need(self, request: RequestRun, need: Need, part: Any) -> None:
        """walk look writes at most"""
        rows_P = need.rows(part.pixels)
        need.write("mind", None if rows_P is None else rows_P // 4 + 2)

    def answer_need(self, request: RequestRun, need: Need, part: Any) -> None:
        """walk answer writes at most"""
        rows_T = need.rows(part.ids)
        need.write("mind", rows_T)
        need.write("mind", request.params.max_tokens)

    def follow_need(self, request: RequestRun, need: Need, view: Any) -> None:
        """walk follow writes at most"""
        need.write("mouth", None)

    def talk_need(self, request: RequestRun, need: Need) -> None:
        """walk talk writes at most"""
        need.write("mouth", 6)
        need.write("mouth", request.params.talker_max_tokens - 1)

    def vocode_need(self, request: RequestRun, need: Need) -> None:
        """walk vocode writes no context"""

    def let_speech(self, request: RequestRun) -> object:
        """let speech"""
        return request.wants("audio")

    def context_mouth(self, request: RequestRun) -> bool:
        """context mouth is on"""
        return bool(self.let_speech(request))
