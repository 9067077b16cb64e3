"""The conductor of `ask`: a coroutine per request and arm. Written by mstarc; do not edit."""

from typing import Any

from mstarc_runtime.program import ConductorProgram, Entry, Input, Need, Param, RequestRun, Steps


class Ask(ConductorProgram):
    MODEL = "ask"
    PARAMS = (
        Param("max_tokens", "int", default=256, low=1, high=1024),
        Param("temperature", "float", default=0.0, low=0.0, high=2.0),
        Param("top_k", "int", default=0, low=0, high=1000),
        Param("top_p", "float", default=1.0, low=0.0, high=1.0),
        Param("repetition_penalty", "float", default=1.0, low=0.5, high=2.0),
        Param("ignore_eos", "bool", default=False),
    )
    ENTRIES = (
        Entry(
            "chat",
            inputs=(Input("messages", "parts", members=("text", "audio")),),
            outputs=(("text", False), ("audio", True)),
        ),
    )
    ARMS = {"chat_answering": (("phrases",), ()), "chat_speaking": ((), ("phrases",))}
    RESULTS = {"hear": 1, "layout": 2, "retell": 1, "cut": 2, "phonemes": 1}

    def chat(self, request: RequestRun) -> Steps:
        """request chat(messages: list(text | audio)) -> text, audio?"""
        prefix, tail = yield request.extern("layout", request.inputs.messages)
        for part in prefix:
            if part.kind == "text_part":
                yield request.start("read", part.ids)
            elif part.kind == "audio_part":
                (heard,) = yield request.walk("hear", part.mel, part.forced)
                retell = yield request.extern("retell", heard)
                yield request.start("read", retell)
        yield request.together(
            answering=self.chat_answering(request, tail),
            speaking=self.chat_speaking(request),
        )
        return ()

    def chat_answering(self, request: RequestRun, tail: Any) -> Steps:
        """arm answering"""
        yield request.walk("answer", tail.ids, closes=("phrases",))
        return ()

    def chat_speaking(self, request: RequestRun) -> Steps:
        """arm speaking"""
        if request.wants("audio"):
            yield request.walk("speak")
        return ()

    def read_need(self, request: RequestRun, need: Need, ids: Any) -> None:
        """walk read writes at most"""
        rows_T = need.rows(ids)
        need.write("main", rows_T)

    def hear_need(self, request: RequestRun, need: Need, mel: Any, forced: Any) -> None:
        """walk hear writes at most"""
        rows_G = need.rows(forced)
        need.write("sound", 1500)
        need.write("said", rows_G)
        need.write("said", 224)
        need.drop("sound", "said")

    def answer_need(self, request: RequestRun, need: Need, ids: Any) -> None:
        """walk answer writes at most"""
        rows_T = need.rows(ids)
        need.write("main", rows_T)
        need.write("main", request.params.max_tokens)

    def speak_need(self, request: RequestRun, need: Need) -> None:
        """walk speak writes no context"""
