"""The worker of `pi05`: a coroutine per walk, a method per region. Written by mstarc; do not edit."""

from mstarc_runtime.program import Array, Steps, Walk, WorkerProgram


class Pi05(WorkerProgram):
    MODEL = "pi05"

    def look(self, walk: Walk, images: Array, ids: Array) -> Steps:
        """walk look(images: f32[C, 3, pixels, pixels], ids: i64[T])"""
        seen = yield walk.call("vit.encode", images)
        yield walk.call("llm.read", seen, ids, writes=("prefix",))
        return ()

    def flow(self, walk: Walk) -> Steps:
        """walk flow()"""
        x = walk.noise("f32", (walk.config.horizon, walk.config.width), "x")
        x_2 = x
        for steps_iter in range(walk.params.flow_steps):
            v = yield walk.call("llm.velocity", x_2, 1 - steps_iter / walk.params.flow_steps, reads=("prefix",))
            x_3 = x_2 - v / walk.params.flow_steps
            x_2 = x_3
        walk.emit("action", x_2)
        return ()
