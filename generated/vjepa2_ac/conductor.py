"""The conductor of `vjepa2_ac`: a coroutine per request and arm. Written by mstarc; do not edit."""

from typing import Any

from mstarc_runtime.program import ConductorProgram, Entry, Input, Need, Param, RequestRun, Steps


class Vjepa2Ac(ConductorProgram):
    MODEL = "vjepa2_ac"
    PARAMS = (Param("horizon", "int", default=1, low=1, high=32), Param("live", "bool", default=False))
    ENTRIES = (
        Entry("features", inputs=(Input("video", "video"),), outputs=(("video", False),)),
        Entry(
            "predict",
            inputs=(
                Input("video", "video"),
                Input("actions", "tensor", dtype="f32", dims=("T", 7)),
                Input("states", "tensor", dtype="f32", dims=("T", 7)),
            ),
            outputs=(("video", False),),
        ),
        Entry(
            "rollout",
            inputs=(
                Input("video", "video"),
                Input("actions", "tensor", dtype="f32", dims=("A", 7)),
                Input("states", "tensor", dtype="f32", dims=("S", 7)),
            ),
            outputs=(("video", False),),
        ),
        Entry(
            "choose",
            inputs=(
                Input("video", "video"),
                Input("actions", "tensor", dtype="f32", dims=("K", "T", 7)),
                Input("states", "tensor", dtype="f32", dims=("K", "T", 7)),
                Input("goal", "tensor", dtype="f32", dims=("n", "d")),
            ),
            outputs=(("scalar", False), ("tensor", False), ("video", False)),
        ),
        Entry(
            "plan",
            inputs=(
                Input("video", "video"),
                Input("actions", "tensor", dtype="f32", dims=("K", "A", 7)),
                Input("states", "tensor", dtype="f32", dims=("S", 7)),
                Input("goal", "tensor", dtype="f32", dims=("n", "d")),
            ),
            outputs=(("scalar", False), ("tensor", False), ("video", False)),
        ),
    )
    RESULTS = {"clip": 1, "poses": 1, "courses": 1}

    def features(self, request: RequestRun) -> Steps:
        """request features(video: media video) -> video"""
        clip = yield request.extern("clip", request.inputs.video)
        yield request.walk("encode", clip)
        return ()

    def predict(self, request: RequestRun) -> Steps:
        """request predict(video: media video, actions: f32[T, 7], states: f32[T, 7]) -> video"""
        clip = yield request.extern("clip", request.inputs.video)
        yield request.walk("teach", clip, request.inputs.actions, request.inputs.states)
        return ()

    def rollout(self, request: RequestRun) -> Steps:
        """request rollout(video: media video, actions: f32[A, 7], states: f32[S, 7]) -> video"""
        request.require(len(request.inputs.actions) >= request.params.horizon, "A >= horizon")
        clip = yield request.extern("clip", request.inputs.video)
        poses = yield request.extern("poses", request.inputs.states, request.inputs.actions)
        yield request.walk("imagine", clip[0:1], request.inputs.actions, poses)
        return ()

    def choose(self, request: RequestRun) -> Steps:
        """request choose(video: media video, actions: f32[K, T, 7], states: f32[K, T, 7], goal: f32[n, d]) -> scalar, tensor, video"""
        clip = yield request.extern("clip", request.inputs.video)
        yield request.walk("weigh", clip, request.inputs.actions, request.inputs.states, request.inputs.goal)
        return ()

    def plan(self, request: RequestRun) -> Steps:
        """request plan(video: media video, actions: f32[K, A, 7], states: f32[S, 7], goal: f32[n, d]) -> scalar, tensor, video"""
        clip = yield request.extern("clip", request.inputs.video)
        courses = yield request.extern("courses", request.inputs.states, request.inputs.actions)
        yield request.walk("search", clip[0:1], request.inputs.actions, courses, request.inputs.goal)
        return ()

    def imagine_need(self, request: RequestRun, need: Need, first: Any, actions: Any, states: Any) -> None:
        """walk imagine writes at most"""
        need.write("past", (request.config.n + 2) * request.params.horizon)

    def encode_need(self, request: RequestRun, need: Need, video: Any) -> None:
        """walk encode writes no context"""

    def teach_need(self, request: RequestRun, need: Need, video: Any, actions: Any, states: Any) -> None:
        """walk teach writes no context"""

    def search_need(self, request: RequestRun, need: Need, first: Any, actions: Any, states: Any, goal: Any) -> None:
        """walk search writes no context"""

    def weigh_need(self, request: RequestRun, need: Need, video: Any, actions: Any, states: Any, goal: Any) -> None:
        """walk weigh writes no context"""
