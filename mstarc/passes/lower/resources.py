"""Caches, contexts, samplers and streams to IR. Takes syntax trees; reports what they name or set wrongly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Label
from mstarc.ir import declarations
from mstarc.ir.fold import ID_LISTS
from mstarc.ir.types import Expr, Lit, Range, Tensor, Type
from mstarc.passes.lower.symbols import nearest
from mstarc.passes.lower.typed import is_truth, number_of, type_text
from mstarc.passes.lower.written import WrittenTypes
from mstarc.source import Span
from mstarc.syntax import ast

SETTINGS = ("temperature", "top_k", "top_p", "repetition_penalty", "min_tokens", *ID_LISTS)
_CACHE = ("layers", "heads", "kv_heads", "head_dim")
_POLICIES: Mapping[str, tuple[str, ...]] = {
    "fixed": ("size",),
    "sliding_window": ("size", "stride"),
    "left_context": ("chunk", "left"),
    "phrase": ("cut", "max"),
}
_COUNTS = ("top_k", "min_tokens")  # settings that are whole numbers
_ENDS = ("drop", "partial", "pad(zero)", "pad(repeat)")


class Resources:
    """Lowers what walks use besides ops."""

    def __init__(self, types: WrittenTypes, externs: Mapping[str, declarations.ExternDecl]) -> None:
        self._types = types
        self._plain = types.plain
        self._symbols = types.symbols
        self._report = types.report
        self._externs = externs

    # ------------------------------------------------------------------------------------------------- caches and contexts

    def cache(self, decl: ast.Cache) -> declarations.Cache | None:
        if decl.layout.text != "kv":
            self._symbols.unknown(decl.layout, "kind of cache", ("kv",))
            return None
        found = self._by_name(decl.args, _CACHE, f"cache `{decl.name.text}`", decl.name.span)
        if found is None:
            return None
        layers, heads, kv_heads, head_dim = (self._plain.number(found[name], f"`{name}`").expr for name in _CACHE)
        return declarations.Cache(decl.name.text, layers, heads, kv_heads, head_dim, span=decl.span)

    def _by_name(
        self, args: Sequence[ast.Arg], names: Sequence[str], what: str, at: Span
    ) -> dict[str, ast.Expr] | None:
        """Arguments by name, or by position in the order of `names`; None after an error. All are due."""
        found: dict[str, ast.Expr] = {}
        fine = True
        for k, arg in enumerate(args):
            if arg.name is None and k >= len(names):
                message = f"{what} takes {len(names)} arguments, {len(args)} are given"
                self._report.report(rules.MC013, message, arg.span)
                return None
            name = names[k] if arg.name is None else arg.name.text
            if arg.name is not None and name not in names:
                self._symbols.setting(arg.name, what, names)
                fine = False
            elif name in found:
                self._report.report(rules.MC013, f"{what} is given `{name}` twice", arg.span, subject=name)
                fine = False
            found[name] = arg.value
        missing = [name for name in names if name not in found]
        if missing and fine:
            lacks = ", ".join(f"`{name}`" for name in missing)
            self._report.report(rules.MC013, f"{what} does not say {lacks}", at, help=f"add `{missing[0]} = ...`")
        return found if fine and not missing else None

    def contexts(self, decl: ast.Context) -> list[declarations.Context]:
        """The contexts that one declaration names."""
        self._symbols.find(decl.cache, "cache")
        most = None if decl.max is None else self._plain.number(decl.max, "the `max` of a context").expr
        when = None if decl.when is None else self._plain.condition(decl.when, "the `when` of a context").expr
        names = [name for name in decl.names if self._symbols.owns(name, decl)]
        once = dict.fromkeys(name.text for name in names)
        return [declarations.Context(name, decl.cache.text, most, when, span=decl.span) for name in once]

    # ------------------------------------------------------------------------------------------------------------ samplers

    def sampler(self, decl: ast.Sampler) -> declarations.Sampler:
        settings: dict[str, Expr] = {}
        over = ""
        for setting in decl.settings:
            name = setting.name.text
            if name not in SETTINGS:
                self._symbols.setting(setting.name, "a sampler", SETTINGS)
                continue
            if name in settings:
                message = f"sampler `{decl.name.text}` sets `{name}` twice"
                self._report.report(rules.MC013, message, setting.span, subject=name)
            if setting.over is not None:
                over = self._over(setting, setting.over) or over
            settings[name] = self._setting(setting)
        for one, other in (("min_tokens", "ends"), ("ends", "min_tokens")):
            if one in settings and other not in settings:
                message = f"sampler `{decl.name.text}` sets `{one}` without `{other}`"
                help_text = "`min_tokens = N, ends = ID` keeps those ids from the first N draws"
                self._report.report(rules.MC013, message, decl.name.span, subject=decl.name.text, help=help_text)
        return declarations.Sampler(decl.name.text, tuple(settings.items()), over, span=decl.span)

    def _over(self, setting: ast.Setting, context: ast.Name) -> str:
        if setting.name.text != "repetition_penalty":
            message = f"`over` says which ids a repetition penalty counts; `{setting.name.text}` counts none"
            self._report.report(rules.MC013, message, context.span)
            return ""
        return context.text if self._symbols.find(context, "context") is not None else ""

    def _setting(self, setting: ast.Setting) -> Expr:
        name = setting.name
        tree = setting.value if setting.value is not None else ast.Path((name,), name.span)
        if name.text not in ID_LISTS:
            if setting.high is not None or setting.exclude is not None:
                message = (
                    f"`{name.text}` is one number; only {', '.join(f'`{name}`' for name in ID_LISTS)} take a range"
                )
                self._report.report(rules.MC013, message, setting.span, subject=name.text)
            found = self._plain.number(tree, f"`{name.text}`")
            if name.text in _COUNTS and number_of(found.type) == "float":
                self._report.report(rules.MC007, f"`{name.text}` counts, and this is float", found.span)
            return found.expr
        ids = self._plain.host(tree, f"`{name.text}`")
        if ids.type is not None and number_of(ids.type) != "int":
            message = f"`{name.text}` takes token ids, not {type_text(ids.type)}"
            self._report.report(rules.MC007, message, ids.span, help="write an id, a list of ids, or `a..b`")
        low = ids.expr
        exclude = None if setting.exclude is None else self._plain.host(setting.exclude, "`except`").expr
        if setting.high is None:
            if setting.exclude is not None:
                message = "`except` keeps ids of a range, and there is none"
                self._report.report(rules.MC013, message, setting.exclude.span)
            return low
        return Range(low, self._plain.number(setting.high, f"`{name.text}`").expr, exclude)

    # ------------------------------------------------------------------------------------------------------------- streams

    def stream(self, decl: ast.Stream) -> declarations.Stream | None:
        item = self._types.read(decl.type, tensors=True)
        where = None if decl.where is None else self._where(decl.where, item)
        args = self._policy(decl)
        at_end = self._at_end(decl)
        capacity = self._plain.number(decl.capacity, "a capacity").expr
        for word, clause, allowed in ((decl.after_end, "after_end", "empty"), (decl.overlap, "overlap", "ok")):
            if word is not None and word.text != allowed:
                message = f"`{clause}` is followed by `{allowed}`, not by `{word.text}`"
                self._report.report(rules.MC013, message, word.span, subject=word.text)
        if item is not None and not isinstance(item, Tensor):
            message = f"items of `{decl.name.text}` are {type_text(item)}; streams carry tensors"
            self._report.report(rules.MC007, message, decl.type.span)
        if args is None or item is None:
            return None
        return declarations.Stream(
            decl.name.text,
            item,
            decl.policy.text,  # type: ignore[arg-type]
            tuple(args.items()),
            capacity,
            where,
            at_end,
            decl.after_end is not None,
            decl.overlap is not None,
            span=decl.span,
        )

    def _where(self, tree: ast.Expr, item: Type | None) -> Expr:
        """A truth value of the item, which is a device value."""
        scope = self._types.scope
        outer = scope.free
        scope.free = {**outer, "item": item} if item is not None else outer
        found = self._plain.value(tree)
        scope.free = outer
        if not is_truth(found.type):
            message = f"`where` is {type_text(found.type)}, not a bool of one item"
            self._report.report(rules.MC007, message, found.span)
        return found.expr

    def _policy(self, decl: ast.Stream) -> dict[str, Expr] | None:
        policy = decl.policy.text
        if policy not in _POLICIES:
            self._symbols.setting(decl.policy, "`by`", _POLICIES)
            return None
        found = self._by_name(decl.args, _POLICIES[policy], f"policy `{policy}`", decl.policy.span)
        if found is None:
            return None
        args: dict[str, Expr] = {}
        for name in _POLICIES[policy]:
            if name != "cut":
                args[name] = self._plain.number(found[name], f"`{name}`").expr
                continue
            cut = self._cut(found[name], decl)
            if cut is None:
                return None
            args[name] = Lit(cut)
        return args

    def _cut(self, tree: ast.Expr, decl: ast.Stream) -> str | None:
        """The extern that ends phrases: `(state, item) -> (state, cut)`."""
        if not isinstance(tree, ast.Path) or len(tree.names) != 1:
            self._report.report(rules.MC002, "`phrase` takes the name of an extern", tree.span)
            return None
        if self._symbols.find(tree.names[0], "extern") is None:
            return None
        extern = self._externs.get(tree.names[0].text)
        if extern is None:
            return None
        fits = len(extern.params) == 2 and len(extern.results) == 2 and number_of(extern.results[1].type) == "bool"
        if not fits:
            self._report.report(
                rules.MC007,
                f"`{extern.name}` cannot end the phrases of `{decl.name.text}`",
                tree.span,
                secondary=(Label(extern.span, "declared here"),),
                help=f"declare it `extern {extern.name}(state: T, item: U) -> state: T, cut: bool`",
                subject=extern.name,
            )
            return None
        return extern.name

    def _at_end(self, decl: ast.Stream) -> str:
        if decl.at_end is None:
            return ""
        text = decl.at_end.text + (f"({decl.pad.text})" if decl.pad is not None else "")
        if text in _ENDS:
            return text.replace("(", ":").removesuffix(")")
        message = f"a stream ends with {', '.join(f'`{end}`' for end in _ENDS)}, not with `{text}`"
        self._report.report(rules.MC013, message, decl.at_end.span, help=nearest(text, _ENDS), subject=text)
        return "drop"
