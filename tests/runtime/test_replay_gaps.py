"""The arithmetic of the benchmark that looks at the gaps between replays of CUDA graphs."""

from tests.bench.replay_gaps import Gap, Kernel, replay_gaps, told


def test_gaps_are_between_replays_of_one_queue_and_idle_only_where_nothing_runs() -> None:
    kernels = [
        Kernel(1, 7, 0, 10),
        Kernel(1, 7, 10, 20),  # first replay: 0 to 20
        Kernel(9, 8, 22, 26),  # one kernel of another queue: no replay, but work
        Kernel(2, 7, 30, 41),
        Kernel(2, 7, 40, 50),  # second, its kernels overlap: 30 to 50
        Kernel(3, 7, 50, 60),
        Kernel(3, 7, 60, 70),  # third, at once
    ]
    assert replay_gaps(kernels, least=2) == [Gap(10, 6), Gap(0, 0)]
    assert replay_gaps(reversed(kernels), least=2) == [Gap(10, 6), Gap(0, 0)]


def test_launches_of_few_kernels_are_no_replays() -> None:
    assert replay_gaps([Kernel(launch, 7, 10 * launch, 10 * launch + 5) for launch in range(4)], least=2) == []
    assert told([]) == "no two replays followed each other"


def test_what_is_told_is_in_microseconds() -> None:
    line = told([Gap(2000, 1000), Gap(4000, 1000), Gap(9000, 0)])
    assert line == "3 gaps between replays, µs, median / 95 % / longest: wall 4.0 / 4.0 / 9.0, idle 1.0 / 1.0 / 1.0"
