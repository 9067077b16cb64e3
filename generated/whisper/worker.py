"""The worker of `whisper`: a coroutine per walk, a method per region. Written by mstarc; do not edit."""

from mstarc_runtime.program import Array, Batch, Steps, Walk, WorkerProgram


class Whisper(WorkerProgram):
    MODEL = "whisper"

    def recognise(self, walk: Walk, part: Array) -> Steps:
        """walk recognise(part: window) -> tongue: i64"""
        states = yield walk.call("ears.encode", part.mel)
        yield walk.call("scribe.listen", states, writes=("sound",))
        logits = yield walk.call("scribe.step", walk.config.start, writes=("said",), reads=("sound",))
        tongue = walk.sample("guess", logits, "guess")
        return (tongue,)

    def write(self, walk: Walk, part: Array, forced: Array) -> Steps:
        """walk write(part: window, forced: i64[G])"""
        walk.drop("sound", "said")
        states = yield walk.call("ears.encode", part.mel)
        yield walk.call("scribe.listen", states, writes=("sound",))
        logits = yield walk.call("scribe.read", forced, writes=("said",), reads=("sound",))
        token = walk.sample("opener", logits, "opener")
        yield walk.loop(
            "writing", self.write_writing, "max", min(walk.params.max_tokens, walk.config.target - 4), carry=(token,)
        )
        return ()

    def write_writing(self, b: Batch, token: Array) -> tuple[Array, ...]:
        """loop writing of walk write"""
        (token,) = b.stop(token == b.config.end, carried=(token,), live=(token,))
        b.emit("text", token)
        logits = b.call("scribe.step", token, writes=("said",), reads=("sound",))
        token_2 = b.sample("scribbler", logits, "scribbler")
        return (token_2,)
