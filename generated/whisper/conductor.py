"""The conductor of `whisper`: a coroutine per request and arm. Written by mstarc; do not edit."""

from typing import Any

from mstarc_runtime.program import ConductorProgram, Entry, Input, Need, Param, RequestRun, Steps


class Whisper(ConductorProgram):
    MODEL = "whisper"
    PARAMS = (
        Param("language", "text", default="auto"),
        Param("task", "enum", default="transcribe", members=("transcribe", "translate")),
        Param("temperature", "float", default=0.0, low=0.0, high=1.0),
        Param("max_tokens", "int", default=444, low=1, high=444),
    )
    ENTRIES = (Entry("transcribe", inputs=(Input("speech", "audio"),), outputs=(("text", False),)),)
    RESULTS = {"recognise": 1, "prepare": 3, "opening": 1}

    def transcribe(self, request: RequestRun) -> Steps:
        """request transcribe(speech: media audio) -> text"""
        first, all_, known = yield request.extern("prepare", request.inputs.speech, request.params.language)
        if request.params.language == "auto":
            (tongue,) = yield request.walk("recognise", first)
            for part in all_:
                opening = yield request.extern("opening", tongue, request.params.task)
                yield request.start("write", part, opening)
        else:
            for part_2 in all_:
                opening_2 = yield request.extern("opening", known, request.params.task)
                yield request.start("write", part_2, opening_2)
        return ()

    def recognise_need(self, request: RequestRun, need: Need, part: Any) -> None:
        """walk recognise writes at most"""
        need.write("sound", request.config.source)
        need.write("said", 1)

    def write_need(self, request: RequestRun, need: Need, part: Any, forced: Any) -> None:
        """walk write writes at most"""
        rows_G = need.rows(forced)
        need.drop("sound", "said")
        need.write("sound", request.config.source)
        need.write("said", rows_G)
        need.write("said", None)
