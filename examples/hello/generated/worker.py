"""The worker of `hello`: a coroutine per walk, a method per region. Written by mstarc; do not edit."""

from mstarc_runtime.program import ABSENT, Array, Batch, Steps, Walk, WorkerProgram


class Hello(WorkerProgram):
    MODEL = "hello"
    SENDS = {"count_counting": {"numbers": 1}}

    def count(self, walk: Walk, start: Array) -> Steps:
        """walk count(start: i64)"""
        n = yield walk.call("counter.first", start)
        yield walk.loop("counting", self.count_counting, "max", walk.params.max_steps, carry=(n,))
        return ()

    def count_counting(self, b: Batch, n: Array) -> tuple[Array, ...]:
        """loop counting of walk count"""
        (n,) = b.stop(n == b.config.limit, carried=(n,), live=(n,))
        b.emit("tensor", n)
        b.send("numbers", n)
        n_2 = b.call("counter.next", n)
        return (n_2,)

    def add(self, walk: Walk) -> Steps:
        """walk add()"""
        while (two := (yield walk.take("numbers"))) is not ABSENT:
            total = yield walk.call("adder.pair", two.value)
            walk.emit("scalar", total)
        return ()
