"""The worker of `vjepa2`: a coroutine per walk, a method per region. Written by mstarc; do not edit."""

from mstarc_runtime.program import Array, Batch, Steps, Walk, WorkerProgram


class Vjepa2(WorkerProgram):
    MODEL = "vjepa2"
    COLLECTS = {"anticipate_ahead": ("path",), "anticipate_ahead_2": ("path",)}
    RAGGED = ("anticipate_ahead", "anticipate_ahead_2")

    def look(self, walk: Walk, video: Array) -> Steps:
        """walk look(video: f32[T, 3, H, W])"""
        z = yield walk.call("encoder.encode", video)
        walk.emit("video", z)
        return ()

    def fill(self, walk: Walk, video: Array, seen: Array, wanted: Array) -> Steps:
        """walk fill(video: f32[T, 3, H, W], seen: i64[A], wanted: i64[B])"""
        z = yield walk.call("encoder.encode", video)
        made = yield walk.call("predictor.predict", z, seen, wanted)
        walk.emit("video", made)
        return ()

    def anticipate(self, walk: Walk, video: Array, wanted: Array) -> Steps:
        """walk anticipate(video: f32[T, 3, H, W], wanted: i64[B])"""
        z = yield walk.call("encoder.encode", video)
        if walk.params.live:
            ahead = self.anticipate_ahead
        else:
            ahead = self.anticipate_ahead_2
        _, path = yield walk.loop("ahead", ahead, "times", walk.params.horizon, carry=(z,), fixed=(wanted,))
        if not walk.params.live:
            walk.emit("video", path)
        return ()

    def anticipate_ahead(self, b: Batch, z: Array, wanted: Array) -> tuple[Array, ...]:
        """loop ahead of walk anticipate when live"""
        z_2, made = b.call("predictor.roll", z, wanted)
        b.emit("video", made)
        return (z_2,)

    def anticipate_ahead_2(self, b: Batch, z: Array, wanted: Array) -> tuple[Array, ...]:
        """loop ahead of walk anticipate when not live"""
        z_2, made = b.call("predictor.roll", z, wanted)
        b.collect("path", made)
        return (z_2,)
