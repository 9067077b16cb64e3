"""The worker of `pi05`: a coroutine per walk, a method per region. Written by mstarc; do not edit."""

from mstarc_runtime.program import Array, Batch, Steps, Walk, WorkerProgram


class Pi05(WorkerProgram):
    MODEL = "pi05"

    def look(self, walk: Walk, images: Array, ids: Array) -> Steps:
        """walk look(images: f32[C, 3, pixels, pixels], ids: i64[T])"""
        seen = yield walk.call("vit.encode", images)
        rows = yield walk.call("words.prefix", seen, ids)
        yield walk.call("llm.read", rows, writes=("prefix",))
        return ()

    def flow(self, walk: Walk) -> Steps:
        """walk flow()"""
        x = walk.noise("f32", (walk.config.horizon, walk.config.width), "x")
        (x_4,) = yield walk.loop("steps", self.flow_steps, "times", walk.params.flow_steps, carry=(x,))
        walk.emit("action", x_4)
        return ()

    def flow_steps(self, b: Batch, x: Array) -> tuple[Array, ...]:
        """loop steps of walk flow"""
        v = b.call("llm.velocity", x, b.number(lambda row: 1 - row.iter / row.params.flow_steps), reads=("prefix",))
        x_2 = x - v / b.number(lambda row: row.params.flow_steps)[:, None, None]
        return (x_2,)
