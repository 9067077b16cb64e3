"""The conductor of `orpheus`: a coroutine per request and arm. Written by mstarc; do not edit."""

from typing import Any

from mstarc_runtime.program import ConductorProgram, Entry, Input, Need, Param, RequestRun, Steps


class Orpheus(ConductorProgram):
    MODEL = "orpheus"
    PARAMS = (
        Param("voice", "enum", default="tara", members=("tara", "zoe", "zac", "jess", "leo", "mia", "julia", "leah")),
        Param("temperature", "float", default=0.6, low=0.0, high=2.0),
        Param("top_p", "float", default=0.8, low=0.0, high=1.0),
        Param("repetition_penalty", "float", default=1.3, low=1.0, high=2.0),
        Param("max_tokens", "int", default=2000, low=1, high=8192),
        Param("ignore_eos", "bool", default=False),
    )
    ENTRIES = (Entry("speech", inputs=(Input("text", "text"),), outputs=(("audio", False),)),)
    ARMS = {"speech_speaking": (("codes",), ()), "speech_sounding": ((), ("codes",))}
    RESULTS = {"tokenize": 1}

    def speech(self, request: RequestRun) -> Steps:
        """request speech(text: text) -> audio"""
        ids = yield request.extern("tokenize", request.inputs.text, request.params.voice)
        yield request.together(
            speaking=self.speech_speaking(request, ids),
            sounding=self.speech_sounding(request),
        )
        return ()

    def speech_speaking(self, request: RequestRun, ids: Any) -> Steps:
        """arm speaking"""
        yield request.walk("speak", ids, closes=("codes",))
        return ()

    def speech_sounding(self, request: RequestRun) -> Steps:
        """arm sounding"""
        yield request.walk("vocode")
        return ()

    def speak_need(self, request: RequestRun, need: Need, ids: Any) -> None:
        """walk speak writes at most"""
        rows_T = need.rows(ids)
        need.write("main", rows_T)
        need.write("main", request.params.max_tokens)

    def vocode_need(self, request: RequestRun, need: Need) -> None:
        """walk vocode writes no context"""
