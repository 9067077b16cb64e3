"""The worker of `qwen3_omni`: a coroutine per walk, a method per region. Written by mstarc; do not edit."""

from mstarc_runtime.program import ABSENT, Array, Batch, Steps, Walk, WorkerProgram


class Qwen3Omni(WorkerProgram):
    MODEL = "qwen3_omni"
    SENDS = {"answer_words": {"said": 1}}

    def read(self, walk: Walk, part: Array) -> Steps:
        """walk read(part: text_part)"""
        s = yield walk.call("thinker.text", part.ids, part.heard, writes=("mind",), only=(1,))
        yield walk.send("states", s)
        yield walk.send("media", part.media)
        return ()

    def listen(self, walk: Walk, part: Array) -> Steps:
        """walk listen(part: audio_part)"""
        rows = yield walk.call("ear.encode", part.mel)
        state = yield walk.call("thinker.audio", rows, part.heard, writes=("mind",))
        yield walk.send("states", state)
        yield walk.send("media", part.media)
        return ()

    def look(self, walk: Walk, part: Array) -> Steps:
        """walk look(part: vision_part)"""
        rows, deep = yield walk.call("eye.encode", part.pixels, part.grid)
        state = yield walk.call("thinker.vision", rows, deep, part.place, part.span, part.heard, writes=("mind",))
        yield walk.send("states", state)
        yield walk.send("media", part.media)
        return ()

    def answer(self, walk: Walk, part: Array) -> Steps:
        """walk answer(part: text_part)"""
        logits, s = yield walk.call("thinker.text", part.ids, part.heard, writes=("mind",))
        yield walk.send("states", s)
        yield walk.send("media", part.media)
        token = walk.sample("word", logits, "word")
        yield walk.loop("words", self.answer_words, "max", walk.params.max_tokens, carry=(token,))
        row_2 = yield walk.call("lexicon.row", walk.config.tts_eos)
        yield walk.send("said", row_2)
        return ()

    def answer_words(self, b: Batch, token: Array) -> tuple[Array, ...]:
        """loop words of walk answer"""
        (token,) = b.stop((token == b.config.im_end) & ~b.params.ignore_eos, carried=(token,), live=(token,))
        b.emit("text", token)
        (token,) = b.stop(b.iter + 1 == b.params.max_tokens, carried=(token,), live=(token,), why="max")
        scores, row = b.call("thinker.step", token, writes=("mind",))
        b.send("said", row)
        token_2 = b.sample("word", scores, "word")
        return (token_2,)

    def follow(self, walk: Walk, view: Array) -> Steps:
        """walk follow(view: view)"""
        s, m = yield walk.take("states", "media")
        s = s.value
        m = m.value
        yield walk.call("talker.read", s, m, view.place, view.span, writes=("mouth",))
        return ()

    def talk(self, walk: Walk) -> Steps:
        """walk talk()"""
        said = yield walk.take("said")
        said = said.value if said else ABSENT
        speaker = yield walk.extern("speaker", walk.params.voice)
        logits, hidden = yield walk.call("talker.open", said, speaker, writes=("mouth",))
        logits_2, hidden_2 = logits, hidden
        for _ in range(walk.params.talker_max_tokens - 1):
            code = walk.sample("layer0", logits_2, "layer0")
            if walk.true(code == walk.config.codec_eos):
                walk.cause("speaking", "stop")
                break
            frame = yield walk.call("predictor.fill", hidden_2, code)
            yield walk.send("frames", frame)
            said_2 = yield walk.take("said")
            said_2 = said_2.value if said_2 else ABSENT
            logits_3, hidden_3 = yield walk.call("talker.step", frame, said_2, writes=("mouth",))
            logits_2, hidden_2 = logits_3, hidden_3
        else:
            walk.cause("speaking", "max")
        return ()

    def vocode(self, walk: Walk) -> Steps:
        """walk vocode()"""
        while (chunk := (yield walk.take("frames"))) is not ABSENT:
            pcm = yield walk.call("vocoder.decode", chunk.value)
            walk.emit("audio", pcm[max(0, len(pcm) - 1920 * chunk.new) :], rate=24000)
        return ()
