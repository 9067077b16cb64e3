"""The worker of `vjepa2_ac`: a coroutine per walk, a method per region. Written by mstarc; do not edit."""

from mstarc_runtime.program import Array, Batch, Steps, Walk, WorkerProgram


class Vjepa2Ac(WorkerProgram):
    MODEL = "vjepa2_ac"
    COLLECTS = {"imagine_dream": ("path",), "imagine_dream_2": ("path",)}

    def imagine(self, walk: Walk, first: Array, actions: Array, states: Array) -> Steps:
        """walk imagine(first: f32[1, 3, H, W], actions: f32[A, 7], states: f32[A, 7])"""
        z = yield walk.call("encoder.frames", first)
        z_2 = z[0]
        if walk.params.live:
            dream = self.imagine_dream
        else:
            dream = self.imagine_dream_2
        _, path = yield walk.loop(
            "dream",
            dream,
            "times",
            walk.params.horizon,
            carry=(z_2,),
            fixed=(walk.rows(actions, walk.params.horizon, 32), walk.rows(states, walk.params.horizon, 32)),
        )
        if not walk.params.live:
            walk.emit("video", path)
        return ()

    def imagine_dream(self, b: Batch, z: Array, actions: Array, states: Array) -> tuple[Array, ...]:
        """loop dream of walk imagine when live"""
        z_2 = b.call("predictor.step", z, b.at(actions, b.iter), b.at(states, b.iter), writes=("past",))
        b.emit("video", z_2)
        return (z_2,)

    def imagine_dream_2(self, b: Batch, z: Array, actions: Array, states: Array) -> tuple[Array, ...]:
        """loop dream of walk imagine when not live"""
        z_2 = b.call("predictor.step", z, b.at(actions, b.iter), b.at(states, b.iter), writes=("past",))
        b.collect("path", z_2)
        return (z_2,)

    def encode(self, walk: Walk, video: Array) -> Steps:
        """walk encode(video: f32[T, 3, H, W])"""
        z = yield walk.call("encoder.frames", video)
        walk.emit("video", z)
        return ()

    def teach(self, walk: Walk, video: Array, actions: Array, states: Array) -> Steps:
        """walk teach(video: f32[T, 3, H, W], actions: f32[T, 7], states: f32[T, 7])"""
        z = yield walk.call("encoder.frames", video)
        made = yield walk.call("critic.pass", z, actions, states)
        walk.emit("video", made)
        return ()

    def search(self, walk: Walk, first: Array, actions: Array, states: Array, goal: Array) -> Steps:
        """walk search(first: f32[1, 3, H, W], actions: f32[K, A, 7], states: f32[K, A, 7], goal: f32[n, d])"""
        z = yield walk.call("encoder.frames", first)
        best, costs, made = yield walk.call("critic.dream", z[0], actions, states, goal)
        walk.emit("scalar", best)
        walk.emit("tensor", costs)
        walk.emit("video", made)
        return ()

    def weigh(self, walk: Walk, video: Array, actions: Array, states: Array, goal: Array) -> Steps:
        """walk weigh(video: f32[T, 3, H, W], actions: f32[K, T, 7], states: f32[K, T, 7], goal: f32[n, d])"""
        z = yield walk.call("encoder.frames", video)
        best, costs, final = yield walk.call("critic.score", z, actions, states, goal)
        walk.emit("scalar", best)
        walk.emit("tensor", costs)
        walk.emit("video", final)
        return ()
