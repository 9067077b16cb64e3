"""The language server on stdio: turns the protocol's messages into calls of `workspace`, `index`, `describe` and `complete`.

It holds the open texts and the last check of each model, and adds no analysis. Positions of the protocol become byte offsets here, and
back, in the encoding that the client chose. A request that fails is logged to the client and answered with nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path

from lsprotocol import types as lsp
from pygls import uris
from pygls.lsp.server import LanguageServer
from pygls.workspace import PositionCodec

from mstarc import __version__
from mstarc.binding import read_binding
from mstarc.diagnostics.core import Collector, Diagnostic
from mstarc.diagnostics.fixes import safe_fixes
from mstarc.lsp.complete import offers
from mstarc.lsp.describe import describe, describe_word
from mstarc.lsp.index import Index, Symbol, index
from mstarc.source import SourceFile, Span
from mstarc.syntax.format import format_walk
from mstarc.workspace import Model, load_model, read_source

DELAY = 0.2  # seconds without a change before a text is checked
_SEVERITY = {
    "error": lsp.DiagnosticSeverity.Error,
    "warning": lsp.DiagnosticSeverity.Warning,
    "info": lsp.DiagnosticSeverity.Information,
}
_SYMBOLS = {
    "config": lsp.SymbolKind.Constant,
    "param": lsp.SymbolKind.Property,
    "let": lsp.SymbolKind.Constant,
    "type": lsp.SymbolKind.Struct,
    "extern": lsp.SymbolKind.Interface,
    "cache": lsp.SymbolKind.Object,
    "context": lsp.SymbolKind.Object,
    "sampler": lsp.SymbolKind.Object,
    "node": lsp.SymbolKind.Class,
    "op": lsp.SymbolKind.Method,
    "state": lsp.SymbolKind.Field,
    "stream": lsp.SymbolKind.Event,
    "walk": lsp.SymbolKind.Function,
    "request": lsp.SymbolKind.Function,
}
_COMPLETIONS = {
    "word": lsp.CompletionItemKind.Keyword,
    "builtin": lsp.CompletionItemKind.Function,
    "node": lsp.CompletionItemKind.Class,
    "op": lsp.CompletionItemKind.Method,
    "walk": lsp.CompletionItemKind.Function,
    "extern": lsp.CompletionItemKind.Function,
    "config": lsp.CompletionItemKind.Constant,
    "let": lsp.CompletionItemKind.Constant,
    "param": lsp.CompletionItemKind.Property,
    "type": lsp.CompletionItemKind.Struct,
}


class Server(LanguageServer):
    """models: the last check of each model, by the path of its spec. turn: counts changes, so that only the last one is checked."""

    def __init__(self) -> None:
        super().__init__("mstarc", __version__, lsp.TextDocumentSyncKind.Incremental)
        self.models: dict[str, Model] = {}
        self.turn: dict[str, int] = {}

    # ------------------------------------------------------------------------------------------------------------ texts

    def texts(self) -> dict[str, str]:
        """The open documents, by path."""
        documents = self.workspace.text_documents.items()
        return {path: d.source for uri, d in documents if (path := uris.to_fs_path(uri)) is not None}

    def source(self, uri: str) -> SourceFile:
        """The text of a document as it is now."""
        return SourceFile(uris.to_fs_path(uri) or uri, self.workspace.get_text_document(uri).source)

    @property
    def codec(self) -> PositionCodec:
        return self.workspace.position_codec

    def position(self, source: SourceFile, offset: int) -> lsp.Position:
        """A byte offset as a position of the client."""
        line, column = source.line_column(min(offset, len(source.text.encode())))
        return self.codec.position_to_client_units(_lines(source), lsp.Position(line - 1, column - 1))

    def range(self, source: SourceFile, start: int, end: int) -> lsp.Range:
        return lsp.Range(self.position(source, start), self.position(source, max(start, end)))

    def offset(self, source: SourceFile, position: lsp.Position) -> int:
        """A position of the client as a byte offset; beyond the text, its end."""
        lines = _lines(source)
        place = self.codec.position_from_client_units(lines, position)
        before = "".join(lines[: place.line])
        line = lines[place.line] if place.line < len(lines) else ""
        return len((before + line[: place.character]).encode())

    # ---------------------------------------------------------------------------------------------------------- checking

    def check(self, uri: str) -> None:
        """Check the model that a document belongs to, and publish what is found in each of its files."""
        path = uris.to_fs_path(uri)
        if path is None:
            return
        spec = Path(path).with_suffix(".walk")
        texts = self.texts()
        if str(spec) not in texts and not spec.is_file():
            self._publish(SourceFile(path, ""), ())
            return
        model = load_model(spec, texts)
        self.models[str(spec)] = model
        sources = dict(model.checked.sources)
        for file in (str(spec), str(spec.with_suffix(".yaml"))):
            if file in sources or file in texts:
                source = sources.get(file) or SourceFile(file, texts[file])
                self._publish(source, [d for d in model.checked.findings if d.primary.span.file == file])

    def _publish(self, source: SourceFile, found: Iterable[Diagnostic]) -> None:
        uri = uris.from_fs_path(source.path)
        if uri is not None:
            shown = [self._shown(source, d) for d in found]
            self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, shown))

    def _shown(self, source: SourceFile, d: Diagnostic) -> lsp.Diagnostic:
        more = [*(f"note: {note}" for note in d.notes), *([f"help: {d.help}"] if d.help else [])]
        label = f": {d.primary.text}" if d.primary.text else ""
        related = [
            lsp.DiagnosticRelatedInformation(
                lsp.Location(uris.from_fs_path(s.span.file) or "", self._place(s.span)), s.text
            )
            for s in d.secondary
            if s.span.file
        ]
        return lsp.Diagnostic(
            range=self.range(source, d.primary.span.start, d.primary.span.end),
            message="\n".join((d.message + label, *more)),
            severity=_SEVERITY[d.rule.severity],
            code=d.rule.code,
            source="mstarc",
            related_information=related,
            tags=[lsp.DiagnosticTag.Unnecessary] if d.rule.code == "MC006" else None,
        )

    def _place(self, span: Span) -> lsp.Range:
        """A span in a file of the last check or on disk."""
        texts = self.texts()
        try:
            text = texts[span.file] if span.file in texts else Path(span.file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            text = ""
        return self.range(SourceFile(span.file, text), span.start, span.end)

    # ------------------------------------------------------------------------------------------------------------- names

    def found(self, uri: str, position: lsp.Position) -> tuple[Index, Symbol | None, str, Span] | None:
        """(index, symbol, word, its span) at a place; None if there is no word."""
        source = self.source(uri)
        table = index(source)
        at = table.word_at(self.offset(source, position))
        if at is None:
            return None
        part, number = at
        token = part.tokens[number]
        return table, table.resolve(part, number), token.text, Span(source.path, token.start, token.end)

    def in_binding(self, spec: str, path: tuple[str, ...]) -> lsp.Location | None:
        """Where the binding beside a spec gives a config value."""
        file = str(Path(spec).with_suffix(".yaml"))
        source = read_source(file, Collector(), self.texts())
        bound = read_binding(source, Collector()) if source is not None else None
        place = bound.places.get(("config", *path)) if bound is not None else None
        uri = uris.from_fs_path(file)
        if source is None or place is None or uri is None:
            return None
        return lsp.Location(uri, self.range(source, place.start, place.end))


def _lines(source: SourceFile) -> list[str]:
    return [line + "\n" for line in source.text.split("\n")]


server = Server()


@server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
def did_open(ls: Server, params: lsp.DidOpenTextDocumentParams) -> None:
    ls.check(params.text_document.uri)


@server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
def did_save(ls: Server, params: lsp.DidSaveTextDocumentParams) -> None:
    ls.check(params.text_document.uri)


@server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
async def did_change(ls: Server, params: lsp.DidChangeTextDocumentParams) -> None:
    uri = params.text_document.uri
    turn = ls.turn[uri] = ls.turn.get(uri, 0) + 1
    await asyncio.sleep(DELAY)
    if ls.turn.get(uri) == turn:
        ls.check(uri)


@server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
def did_close(ls: Server, params: lsp.DidCloseTextDocumentParams) -> None:
    uri = params.text_document.uri
    ls.turn.pop(uri, None)
    ls.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))


@server.feature(lsp.TEXT_DOCUMENT_HOVER)
def hover(ls: Server, params: lsp.HoverParams) -> lsp.Hover | None:
    found = ls.found(params.text_document.uri, params.position)
    if found is None:
        return None
    table, symbol, word, span = found
    model = ls.models.get(span.file)
    text = describe(symbol, table, model) if symbol is not None else describe_word(word)
    if text is None:
        return None
    content = lsp.MarkupContent(lsp.MarkupKind.Markdown, text)
    return lsp.Hover(content, ls.range(table.source, span.start, span.end))


@server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
def definition(ls: Server, params: lsp.DefinitionParams) -> lsp.Location | None:
    found = ls.found(params.text_document.uri, params.position)
    if found is None:
        return None
    table, symbol, _, span = found
    at = table.word_at(span.start)
    path = table.config_path(*at) if at is not None else None
    if path is not None:
        return ls.in_binding(span.file, path)
    if symbol is None:
        return None
    return lsp.Location(params.text_document.uri, ls.range(table.source, symbol.start, symbol.end))


@server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=["."]))
def completion(ls: Server, params: lsp.CompletionParams) -> lsp.CompletionList:
    if not params.text_document.uri.endswith(".walk"):
        return lsp.CompletionList(False, [])
    source = ls.source(params.text_document.uri)
    found = offers(index(source), ls.offset(source, params.position))
    items = [
        lsp.CompletionItem(
            o.name, kind=_COMPLETIONS.get(o.kind, lsp.CompletionItemKind.Variable), detail=o.detail or None
        )
        for o in found
    ]
    return lsp.CompletionList(False, items)


@server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
def document_symbol(ls: Server, params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
    source = ls.source(params.text_document.uri)
    symbols = [s for s in index(source).symbols if s.kind in _SYMBOLS]

    def shown(s: Symbol) -> lsp.DocumentSymbol:
        inner = [shown(o) for o in symbols if s.kind == "node" and o.owner == s.name]
        whole, name = ls.range(source, s.begin, s.stop), ls.range(source, s.start, s.end)
        return lsp.DocumentSymbol(s.name, _SYMBOLS[s.kind], whole, name, detail=s.kind, children=inner)

    return [shown(s) for s in symbols if not s.owner]


@server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
def formatting(ls: Server, params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
    source = ls.source(params.text_document.uri)
    text = format_walk(source, Collector())
    if text is None or text == source.text:
        return None
    return [lsp.TextEdit(ls.range(source, 0, len(source.text.encode())), text)]


@server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix]))
def code_action(ls: Server, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
    """The safe fixes of findings in the range, as far as the text is the one that was checked."""
    source = ls.source(params.text_document.uri)
    model = ls.models.get(str(Path(source.path).with_suffix(".walk")))
    checked = model.checked.sources.get(source.path) if model is not None else None
    if model is None or checked is None or checked.text != source.text:
        return []
    first, last = ls.offset(source, params.range.start), ls.offset(source, params.range.end)
    actions = []
    for fix in safe_fixes(model.checked.findings):
        span = fix.edits[0][0]
        if span.file == source.path and span.start <= last and first <= span.end:
            edits = [lsp.TextEdit(ls.range(source, s.start, s.end), text) for s, text in fix.edits]
            edit = lsp.WorkspaceEdit(changes={params.text_document.uri: edits})
            actions.append(lsp.CodeAction(fix.title, lsp.CodeActionKind.QuickFix, edit=edit))
    return actions


def serve() -> None:
    """Serve on standard input and output until the client says `exit` or goes away."""
    logging.basicConfig(level=logging.ERROR)
    server.start_io()
