"""The worker of `vjepa2`: a coroutine per walk, a method per region. Written by mstarc; do not edit."""

from mstarc_runtime.program import Array, Steps, Walk, WorkerProgram


class Vjepa2(WorkerProgram):
    MODEL = "vjepa2"

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
        path_items = []
        z_2 = z
        for _ in range(walk.params.horizon):
            z_3, made = yield walk.call("predictor.roll", z_2, wanted)
            if walk.params.live:
                walk.emit("video", made)
            if not walk.params.live:
                path_items.append(made)
            z_2 = z_3
        path = walk.cat(path_items)
        if not walk.params.live:
            walk.emit("video", path)
        return ()
