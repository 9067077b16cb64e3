"""`mstarc lsp`: the language server on standard input and output. Raises Failure where its library is not installed."""

from __future__ import annotations

from mstarc.cli.guard import OK, USAGE, Failure


def run_lsp() -> int:
    """Serve until the client leaves."""
    try:
        from mstarc.lsp.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("pygls", "lsprotocol"):
            raise
        raise Failure("the language server needs pygls", USAGE, help="pip install 'mstarc[lsp]'") from None
    serve()
    return OK
