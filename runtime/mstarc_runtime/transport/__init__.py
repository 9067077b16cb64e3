"""Messages between processes of one host.

- `wire`: `encode(message, ring) -> frames`, `decode(frames, ring) -> message`; malformed input is a `WireError`.
- `ring`: `create`, `RingWriter`, `RingReader`: array bytes through shared memory without a name.
- `base`: `Transport`, the interface of a port, and `PeerTable`, which epoch of which peer counts.
- `copies`: large arrays are copied by several threads.
- `lane`: a pair of sockets for short messages beside the queues; `order`: messages of both ways in order again.
- `port`: `Port`, the ZeroMQ sockets of one process. `local`: `LocalHub`, `LocalPort`, the same without sockets.
- `endpoint`: where a process listens: a socket file in a private folder, or TCP on loopback.
"""
