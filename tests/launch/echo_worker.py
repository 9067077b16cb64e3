"""A worker without torch for the tests: reports ready, sends back what it gets, and misbehaves on request.

An `Open` whose params name a `do` makes it act; everything else goes back to the conductor. What it knows of itself is in
`Ready.pools`: name -> (number, 0).
"""

from __future__ import annotations

import os
import signal
import sys
import time

from mstarc_runtime.abi.messages import ABI, Finish, Freed, Items, Loading, Open, Peers, Ready, Shutdown
from mstarc_runtime.launch.child import Boot, ParentWatch, open_port, read_boot
from mstarc_runtime.transport.port import Port


def act(port: Port, boot: Boot, do: str) -> None:
    if do == "exit":
        print("leaving on purpose", file=sys.stderr)
        port.send(-1, Freed(-5))
        port.close(1.0)
        sys.exit(3)
    if do == "speak and crash":
        port.send(-1, Freed(-7))
        port.close(1.0)
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if do == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        port.send(-1, Freed(-6))
        time.sleep(600)
    if do.startswith("forward"):
        peer = int(do.split()[1])
        port.send(peer, Items(boot.rank, "s", 0, 0, [1.5]))


def rings() -> int:
    """Open descriptors of shared memory."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += "memfd:mstarc" in os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # of the listing itself
            continue
    return found


def main() -> None:
    boot = read_boot(sys.argv[1:])
    watch = ParentWatch(boot, kill=boot.extra.get("kill", True))
    port = open_port(boot)
    port.watch(watch.fd)
    port.send(-1, Loading(boot.rank, 1, 2, "pretending to load"))
    known = {"threads": int(os.environ["OMP_NUM_THREADS"]), "pid": os.getpid(), "torch": int("torch" in sys.modules)}
    known["rings"] = rings()
    if not boot.extra.get("mute"):
        port.send(-1, Ready(boot.rank, boot.epoch, ABI, {name: (number, 0) for name, number in known.items()}))
    while not watch.gone():
        for _, message in port.poll(10.0):
            match message:
                case Shutdown():
                    port.close(1.0)
                    return
                case Peers():
                    port.connect_all(message)
                case Open(params={"do": do}):
                    act(port, boot, do)
                case Finish(request=request):
                    port.send(-1, Freed(request))
                case _:
                    port.send(-1, message)
    sys.exit(7)


main()
