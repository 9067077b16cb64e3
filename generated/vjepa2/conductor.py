"""The conductor of `vjepa2`: a coroutine per request and arm. Written by mstarc; do not edit."""

from typing import Any

from mstarc_runtime.program import ConductorProgram, Entry, Input, Need, Param, RequestRun, Steps


class Vjepa2(ConductorProgram):
    MODEL = "vjepa2"
    PARAMS = (
        Param("horizon", "int", default=1, low=1, high=16),
        Param("output_frames", "int", default=2, low=2, high=64),
        Param("seconds", "float", default=1.0, low=0.0, high=60.0),
        Param("rate", "float", default=4.0, low=1.0, high=60.0),
        Param("live", "bool", default=False),
    )
    ENTRIES = (
        Entry("features", inputs=(Input("video", "video"),), outputs=(("video", False),)),
        Entry(
            "predict",
            inputs=(
                Input("video", "video"),
                Input("context_mask", "tensor", dtype="i64", dims=("C",), optional=True),
                Input("target_mask", "tensor", dtype="i64", dims=("M",), optional=True),
            ),
            outputs=(("video", False),),
        ),
        Entry("rollout", inputs=(Input("video", "video"),), outputs=(("video", False),)),
    )
    RESULTS = {"clip": 1, "ids": 2, "after": 1}

    def features(self, request: RequestRun) -> Steps:
        """request features(video: media video) -> video"""
        clip = yield request.extern("clip", request.inputs.video)
        yield request.walk("look", clip)
        return ()

    def predict(self, request: RequestRun) -> Steps:
        """request predict(video: media video, context_mask: i64[C]?, target_mask: i64[M]?) -> video"""
        frames = yield request.extern("clip", request.inputs.video)
        seen, wanted = yield request.extern("ids", frames, request.inputs.context_mask, request.inputs.target_mask)
        yield request.walk("fill", frames, seen, wanted)
        return ()

    def rollout(self, request: RequestRun) -> Steps:
        """request rollout(video: media video) -> video"""
        frames = yield request.extern("clip", request.inputs.video)
        after = yield request.extern(
            "after", frames, request.params.seconds, request.params.rate, request.params.output_frames
        )
        yield request.walk("anticipate", frames, after)
        return ()

    def look_need(self, request: RequestRun, need: Need, video: Any) -> None:
        """walk look writes no context"""

    def fill_need(self, request: RequestRun, need: Need, video: Any, seen: Any, wanted: Any) -> None:
        """walk fill writes no context"""

    def anticipate_need(self, request: RequestRun, need: Need, video: Any, wanted: Any) -> None:
        """walk anticipate writes no context"""
