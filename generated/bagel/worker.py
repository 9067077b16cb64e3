"""The worker of `bagel`: a coroutine per walk, a method per region. Written by mstarc; do not edit."""

from mstarc_runtime.program import Array, Batch, Steps, Walk, WorkerProgram, linspace, shift


class Bagel(WorkerProgram):
    MODEL = "bagel"
    COLLECTS = {"write_writing": ("kept",)}
    RAGGED = ("draw_denoise", "draw_denoise_2")

    def read_text(self, walk: Walk, part: Array) -> Steps:
        """walk read_text(part: text_part)"""
        walk.fork("no_text", "main")
        yield walk.call("llm.text", part.ids, writes=("main", "no_image"))
        return ()

    def read_image(self, walk: Walk, part: Array) -> Steps:
        """walk read_image(part: image_part)"""
        if walk.host.wants("image"):
            rows = yield walk.call("vae.encode", part.large)
            yield walk.call("llm.latent", rows, writes=("main",))
        rows_2 = yield walk.call("vit.encode", part.small)
        yield walk.call("llm.image", rows_2, writes=("main",))
        walk.fork("no_text", "main")
        return ()

    def write(self, walk: Walk) -> Steps:
        """walk write() -> kept: i64[K]"""
        walk.fork("draft", "main")
        _, kept = yield walk.loop(
            "writing", self.write_writing, "max", walk.params.max_tokens, carry=(walk.config.bos,)
        )
        walk.drop("draft")
        return (kept,)

    def write_writing(self, b: Batch, token: Array) -> tuple[Array, ...]:
        """loop writing of walk write"""
        logits = b.call("llm.step", token, writes=("draft",))
        token_2 = b.sample("words", logits, "words")
        (token_2,) = b.stop(token_2 == b.config.eos, carried=(token_2,), live=(token_2,))
        b.emit("text", token_2)
        b.collect("kept", token_2)
        return (token_2,)

    def note(self, walk: Walk, ids: Array) -> Steps:
        """walk note(ids: i64[T])"""
        yield walk.call("llm.text", ids, writes=("main",))
        return ()

    def draw(self, walk: Walk, h: Array, w: Array) -> Steps:
        """walk draw(h: i64, w: i64)"""
        times = shift(linspace(1, 0, walk.params.steps), walk.params.time_shift)
        x = walk.noise("f32", (h // walk.config.cell * (w // walk.config.cell), walk.config.c), "x")
        denoise_items = []
        for denoise_iter in range(walk.params.steps - 1):
            t = times[denoise_iter]
            on = walk.params.cfg_above < t and t <= walk.params.cfg_upto
            if on:
                denoise_items.append(self.draw_denoise)
            else:
                denoise_items.append(self.draw_denoise_2)
        (x_4,) = yield walk.loop(
            "denoise",
            self.draw_denoise,
            "times",
            walk.params.steps - 1,
            carry=(x,),
            fixed=(walk.rows(times, walk.params.steps, 200),),
            bodies=denoise_items,
        )
        image = yield walk.call("vae.decode", x_4, h, w)
        walk.emit("image", image)
        return ()

    def draw_denoise(self, b: Batch, x: Array, times: Array) -> tuple[Array, ...]:
        """loop denoise of walk draw when on"""
        t = b.at(times, b.iter)
        v, a, b_ = b.parallel(
            b.arm("llm.velocity", x, t, reads=("main",)),
            b.arm("llm.velocity", x, t, reads=("no_text",)),
            b.arm("llm.velocity", x, t, reads=("no_image",)),
        )
        guided = b.guide(
            v,
            a,
            b_,
            settings=lambda row: (row.params.cfg_text, row.params.cfg_img, row.params.renorm, row.params.renorm_min),
        )
        x_2 = x - (t - b.at(times, b.iter + 1)) * guided
        return (x_2,)

    def draw_denoise_2(self, b: Batch, x: Array, times: Array) -> tuple[Array, ...]:
        """loop denoise of walk draw when not on"""
        t = b.at(times, b.iter)
        v = b.call("llm.velocity", x, t, reads=("main",))
        x_2 = x - (t - b.at(times, b.iter + 1)) * v
        return (x_2,)
