"""The HTTP surface of an engine and the terminal's `mstarc call`.

- `cli`: `run_server` and `call_once`, what the command line calls.
- `app`: the FastAPI application over an engine; `server`: uvicorn around it, from the first byte to an orderly end.
- `schema`, `body`: what a client may send; `faults`: what it gets when it sends something else.
- `surface`, `answer`, `text`: from a request's events to the text, audio, finish reason and usage of a chat answer.
- `chat`, `speech`, `walks`: the shapes of `/v1/chat/completions`, `/v1/audio/speech` and `/v1/walks/<request>`.
- `http`, `bulk`: large bodies past the event loop; `sse`, `client`: streaming and disconnects.
- `playback`, `audio`, `metrics`: what a listener hears, the bytes of it, and what an operator sees.
"""
