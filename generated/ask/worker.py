"""The worker of `ask`: a coroutine per walk, a method per region. Written by mstarc; do not edit."""

from mstarc_runtime.program import ABSENT, Array, Batch, Steps, Walk, WorkerProgram


class Ask(WorkerProgram):
    MODEL = "ask"
    SENDS = {"answer_speaking": {"phrases": 1}}
    COLLECTS = {"hear_writing": ("heard",)}

    def read(self, walk: Walk, ids: Array) -> Steps:
        """walk read(ids: i64[T])"""
        yield walk.call("llm.read", ids, writes=("main",))
        return ()

    def hear(self, walk: Walk, mel: Array, forced: Array) -> Steps:
        """walk hear(mel: f32[80, 3000], forced: i64[G]) -> heard: i64[K]"""
        states = yield walk.call("ears.encode", mel)
        yield walk.call("scribe.listen", states, writes=("sound",))
        logits = yield walk.call("scribe.read", forced, writes=("said",), reads=("sound",))
        token = walk.sample("opener", logits, "opener")
        _, heard = yield walk.loop("writing", self.hear_writing, "max", 224, carry=(token,))
        walk.drop("sound", "said")
        return (heard,)

    def hear_writing(self, b: Batch, token: Array) -> tuple[Array, ...]:
        """loop writing of walk hear"""
        (token,) = b.stop(token == b.config.end, carried=(token,), live=(token,))
        b.collect("heard", token)
        logits = b.call("scribe.step", token, writes=("said",), reads=("sound",))
        token_2 = b.sample("scribbler", logits, "scribbler")
        return (token_2,)

    def answer(self, walk: Walk, ids: Array) -> Steps:
        """walk answer(ids: i64[T])"""
        logits = yield walk.call("llm.read", ids, writes=("main",))
        token = walk.sample("reply", logits, "reply")
        yield walk.loop("speaking", self.answer_speaking, "max", walk.params.max_tokens, carry=(token,))
        return ()

    def answer_speaking(self, b: Batch, token: Array) -> tuple[Array, ...]:
        """loop speaking of walk answer"""
        (token,) = b.stop((token == b.config.eos) & ~b.params.ignore_eos, carried=(token,), live=(token,))
        b.emit("text", token)
        b.send("phrases", token)
        logits = b.call("llm.step", token, writes=("main",))
        token_2 = b.sample("reply", logits, "reply")
        return (token_2,)

    def speak(self, walk: Walk) -> Steps:
        """walk speak()"""
        while (phrase := (yield walk.take("phrases"))) is not ABSENT:
            ids = yield walk.extern("phonemes", phrase.value)
            durations, f0, energy = yield walk.call("voice.prosody", ids)
            spectrum = yield walk.call("voice.acoustic", ids, durations, f0, energy)
            pcm = yield walk.call("voice.istft", spectrum)
            walk.emit("audio", pcm, rate=24000)
        return ()
