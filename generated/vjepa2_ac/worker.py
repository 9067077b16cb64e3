"""The worker of `vjepa2_ac`: a coroutine per walk, a method per region. Written by mstarc; do not edit."""

from mstarc_runtime.program import Array, Steps, Walk, WorkerProgram


class Vjepa2Ac(WorkerProgram):
    MODEL = "vjepa2_ac"

    def imagine(self, walk: Walk, video: Array, actions: Array, states: Array) -> Steps:
        """walk imagine(video: f32[T, 3, H, W], actions: f32[A, 7], states: f32[A, 7])"""
        z = yield walk.call("encoder.frames", video[0:1])
        z_2 = z[0]
        path_items = []
        z_3 = z_2
        for dream_iter in range(walk.params.horizon):
            z_4 = yield walk.call("predictor.step", z_3, actions[dream_iter], states[dream_iter], writes=("past",))
            if walk.params.live:
                walk.emit("video", z_4)
            if not walk.params.live:
                path_items.append(z_4)
            z_3 = z_4
        path = walk.cat(path_items)
        if not walk.params.live:
            walk.emit("video", path)
        return ()

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

    def search(self, walk: Walk, video: Array, actions: Array, states: Array, goal: Array) -> Steps:
        """walk search(video: f32[T, 3, H, W], actions: f32[K, A, 7], states: f32[K, A, 7], goal: f32[n, d])"""
        z = yield walk.call("encoder.frames", video[0:1])
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
