"""The worker of `orpheus`: a coroutine per walk, a method per region. Written by mstarc; do not edit."""

from mstarc_runtime.program import ABSENT, Array, Batch, Steps, Walk, WorkerProgram


class Orpheus(WorkerProgram):
    MODEL = "orpheus"
    SENDS = {"speak_frames": {"codes": 1}}

    def speak(self, walk: Walk, ids: Array) -> Steps:
        """walk speak(ids: i64[T])"""
        logits = yield walk.call("llm.read", ids, writes=("main",))
        token = walk.sample("speech", logits, "speech")
        yield walk.loop("frames", self.speak_frames, "max", walk.params.max_tokens, carry=(token,))
        return ()

    def speak_frames(self, b: Batch, token: Array) -> tuple[Array, ...]:
        """loop frames of walk speak"""
        (token,) = b.stop((token == b.config.end) & ~b.params.ignore_eos, carried=(token,), live=(token,))
        b.send("codes", token)
        logits = b.call("llm.step", token, writes=("main",))
        token_2 = b.sample("speech", logits, "speech")
        return (token_2,)

    def vocode(self, walk: Walk) -> Steps:
        """walk vocode()"""
        while (window := (yield walk.take("codes"))) is not ABSENT:
            pcm = yield walk.call("snac.decode", window.value)
            walk.emit("audio", pcm, rate=24000)
        return ()

    def where_codes(self, b: Batch, item: Array) -> Array:
        """stream codes"""
        return item >= b.config.first
