"""The table of rules: one constant a code, and what state each code is in. Takes nothing; gives `RULES` and `rule_state`.

Families: MC0xx names and text, MC1xx deadlock and determinacy, MC2xx loops, MC3xx branches and phases, MC4xx streams,
MC5xx contexts, params and requests, MC6xx placement, MC7xx graph regions, MC8xx cost, MC9xx the binding file (YAML), and
the weights of a checkpoint.
A code whose construct the language does not have is kept as `reserved`, so that a code never changes its meaning.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from mstarc.diagnostics.core import Rule

State: TypeAlias = Literal["checked", "link", "weights", "reserved", "internal"]

MC000 = Rule("MC000", "internal-error", "error", "the compiler does its work")

# ------------------------------------------------------------------------------------------------------ names and text

MC001 = Rule(
    "MC001", "duplicate-name", "error", "a name is declared once in its model", help="give one of them another name"
)
MC002 = Rule(
    "MC002", "unknown-name", "error", "every reference resolves to a declaration of the right kind", ("MC004",)
)
MC003 = Rule("MC003", "rebound-name", "error", "a name is bound once on any path, unless the loop around it carries it")
MC004 = Rule("MC004", "unbound-input", "error", "each parameter gets one argument, each result of a call one name")
MC005 = Rule("MC005", "use-before-bind", "error", "a name is used only after the statement that binds it")
MC006 = Rule("MC006", "dead-value", "warning", "a bound value is used on at least one path")
MC007 = Rule(
    "MC007",
    "type-mismatch",
    "error",
    "argument and parameter agree in dtype, rank and dims",
    help="pass a value of the declared type, or change the declaration",
)
MC010 = Rule("MC010", "syntax-error", "error", "the text follows the grammar of the language")
MC011 = Rule("MC011", "reserved-word", "error", "a word of the language is not used as a name")
MC012 = Rule("MC012", "unreadable-file", "error", "a file exists, is readable and is UTF-8 text")
MC013 = Rule(
    "MC013",
    "unknown-setting",
    "error",
    "attributes, settings and policy arguments are ones the language has, with values that it takes",
)
MC014 = Rule(
    "MC014",
    "allow-malformed",
    "error",
    "an `allow` comment names a warning and gives its reason",
    help="write `# mstarc: allow MC006 -- ` and why it is right here",
)
MC015 = Rule("MC015", "allow-unused", "warning", "an `allow` comment silences at least one finding")

MC016 = Rule("MC016", "package-edited", "error", "a generated package is as the compiler wrote it")

# ------------------------------------------------------------------------------------------- deadlock and determinacy

MC101 = Rule("MC101", "zero-delay-cycle", "error", "every cycle of value dependencies crosses a carry")
MC102 = Rule("MC102", "unprimed-stream-cycle", "error", "arms that wait for each other's items can make progress")
MC103 = Rule("MC103", "capacity-deadlock", "error", "arms can finish within the declared capacities")
MC104 = Rule(
    "MC104",
    "shared-state-race",
    "error",
    "a context, state, sampler or emitted modality belongs to one arm",
    ("MC502",),
)
MC105 = Rule("MC105", "unordered-writers", "error", "one arm sends on a stream and one arm takes from it")

# --------------------------------------------------------------------------------------------------------------- loops

MC201 = Rule("MC201", "loop-bound", "error", "a loop's bound is a host value that is provably in range")
MC202 = Rule(
    "MC202",
    "carry-incomplete",
    "error",
    "a carried name has an initial value and is bound on every path",
    help="bind it on every path through the body, or take it out of `carry`",
)
MC203 = Rule(
    "MC203",
    "carry-type",
    "error",
    "the initial and the next value of a carried name have one type",
    help="let the body give it the type that it begins with",
)
MC204 = Rule(
    "MC204", "stale-body", "warning", "a loop's body depends on something that changes from one iteration to the next"
)
MC205 = Rule(
    "MC205",
    "exit-predicate",
    "error",
    "`stop when` tests a bool that the body can change",
    ("MC002",),
    help="test a bool that depends on what the loop carries, draws or takes",
)
MC206 = Rule("MC206", "loop-result", "error", "a name used after a loop is carried or collected by it", ("MC002",))
MC207 = Rule("MC207", "collect-over-budget", "error", "what a loop collects fits its placement")
MC208 = Rule(
    "MC208",
    "unsafe-speculation",
    "error",
    "in a loop that is told to run ahead, effects that nothing undoes follow the check of their iteration",
)

# -------------------------------------------------------------------------------------------------- branches and phases

MC301 = Rule("MC301", "join-incomplete", "error", "a name used after a branch is bound on every path to the use")
MC302 = Rule(
    "MC302", "double-join", "error", "two arms do not bind one name", ("MC003",), help="give one of them another name"
)
MC303 = Rule(
    "MC303",
    "arm-mismatch",
    "error",
    "the two values of a conditional expression have one type, and no effect of one alone",
)
MC304 = Rule("MC304", "inexhaustive-match", "error", "`for ... case` covers each kind of part once")
MC305 = Rule("MC305", "device-guard", "error", "control depends on host values only")

# ------------------------------------------------------------------------------------------------------------- streams

MC401 = Rule(
    "MC401",
    "policy-arguments",
    "error",
    "the numbers of a stream policy are in range",
    help="choose numbers for which this holds",
)
MC402 = Rule(
    "MC402",
    "rate-inconsistent",
    "error",
    "streams taken together receive items at one rate",
    help="give both streams as many new items per chunk",
)
MC403 = Rule(
    "MC403",
    "unaligned-inputs",
    "error",
    "streams taken together give equally many chunks in every request",
    help="give both streams the same policy and `at_end`, or take from them in loops of their own",
)
MC404 = Rule("MC404", "capacity-too-small", "error", "a capacity holds the largest chunk and what comes before it")
MC405 = Rule(
    "MC405",
    "unbounded-stream",
    "error",
    "a stream's capacity is a host value with a provable range",
    help="write a number, or a param with an upper end",
)
MC406 = Rule("MC406", "tail-undeclared", "error", "a stream that can end within a chunk says what happens to the rest")
MC407 = Rule("MC407", "no-end-of-stream", "error", "`next` is never called more often than there are chunks")
MC408 = Rule("MC408", "window-never-fills", "warning", "a producer can send at least one full chunk")
MC409 = Rule("MC409", "overlap-untrimmed", "error", "items decoded twice are trimmed, or the overlap is declared")
MC410 = Rule("MC410", "rate-undeclared", "error", "a source whose items per firing vary declares them")
MC411 = Rule(
    "MC411", "stream-one-ended", "error", "a stream that is sent on is taken from in a parallel arm, and vice versa"
)

# ---------------------------------------------------------------------------------------- contexts, params, requests

MC501 = Rule("MC501", "result-unused", "warning", "the result of a walk is used by the request")
MC502 = Rule("MC502", "recall-before-persist", "error", "a context is written before an op that needs it reads it")
MC503 = Rule("MC503", "over-budget", "error", "weights, caches and buffers fit the memory of each placement")
MC504 = Rule("MC504", "unsized-dim", "error", "each free dim that sizes a buffer has a bound")
MC505 = Rule("MC505", "context-unused", "warning", "a context is written by some walk")
MC506 = Rule("MC506", "frozen-writes", "error", "a frozen op neither writes a context nor advances its counter")
MC507 = Rule("MC507", "foreign-context", "error", "an op uses contexts of its own node's cache")
MC508 = Rule("MC508", "default-out-of-range", "error", "a param's default lies in the param's own range")
MC509 = Rule(
    "MC509",
    "output-mismatch",
    "error",
    "a request emits what it declares and declares what it emits",
    help="emit it in a walk that the request runs, or leave it out of the outputs",
)
MC510 = Rule("MC510", "walk-never-called", "warning", "some request calls each walk")
MC511 = Rule("MC511", "require-late", "error", "`require` stands before the first walk call of a request")
MC512 = Rule(
    "MC512",
    "require-constant",
    "error",
    "a `require` can be true and can be false",
    help="leave it out, or compare what differs between requests",
)
MC514 = Rule(
    "MC514", "never-asked", "error", "`wants` asks for an output, and `given` for an input, that a request declares"
)
MC513 = Rule("MC513", "no-request", "error", "a model has at least one request")
MC517 = Rule(
    "MC517", "cache-geometry", "error", "caches and contexts hold something, and heads share keys and values evenly"
)
MC516 = Rule("MC516", "never-reached", "warning", "each branch of a request program is taken by some request")
MC515 = Rule("MC515", "op-never-called", "warning", "some walk calls each op")

# ----------------------------------------------------------------------------------------------------------- placement

MC601 = Rule("MC601", "unplaced-node", "error", "every node has exactly one placement")
MC602 = Rule("MC602", "split-loop-exit", "error", "ranks that share a loop hear of its exit")
MC603 = Rule("MC603", "chatty-cut", "warning", "bytes across a cut inside a loop stay under the link's budget")
MC604 = Rule(
    "MC604", "overlapping-groups", "error", "groups of ranks are equal or disjoint, and divide what they share"
)
MC605 = Rule("MC605", "split-walk", "error", "all ops of a walk are on one rank")

# ---------------------------------------------------------------------------------------------------- regions and cost

MC701 = Rule("MC701", "region-not-convex", "error", "no path leaves a region and comes back", ("MC702",))
MC702 = Rule("MC702", "region-impure", "error", "a region holds device work only")
MC703 = Rule("MC703", "bucket-gap", "error", "graph sizes ascend and cover the largest batch")
MC801 = Rule("MC801", "slo-exceeded", "error", "the longest path of a walk fits its deadline")
MC802 = Rule("MC802", "period-exceeded", "error", "the maximum cycle ratio fits the declared period")
MC803 = Rule("MC803", "lopsided-par", "info", "parallel arms cost about the same")

# ---------------------------------------------------------------------------------------------------- the binding file

MC901 = Rule("MC901", "unknown-key", "error", "each key of the binding file is one that the format has")
MC902 = Rule(
    "MC902",
    "binding-type",
    "error",
    "each value of the binding file has the type its key asks for",
    help="write it as the table of keys in `specs/README.md` says",
)
MC903 = Rule("MC903", "unbound-node", "error", "every node and extern of the model is bound to Python")
MC904 = Rule(
    "MC904",
    "bound-to-nothing",
    "error",
    "the binding file binds only what the model declares",
    help="take it out, or declare it in the model",
)
MC905 = Rule("MC905", "config-missing", "error", "each config path of the model has a value")
MC906 = Rule(
    "MC906",
    "yaml-syntax",
    "error",
    "the binding file is one YAML mapping without duplicate keys",
    help="look at quotes, brackets and indentation here",
)
MC907 = Rule("MC907", "unknown-checkpoint", "error", "a component's checkpoint is declared under `checkpoints`")
MC909 = Rule("MC909", "config-unused", "warning", "something reads each value under `config`")
MC908 = Rule("MC908", "binding-missing", "warning", "a model has its binding file beside it")
MC910 = Rule(
    "MC910",
    "weight-missing",
    "error",
    "each parameter of a component has its tensor in the checkpoint",
    help="correct the rule that makes it, add one, or give a checkpoint that has it",
)
MC911 = Rule(
    "MC911",
    "weight-unused",
    "error",
    "each tensor of a checkpoint is a parameter of the component, or dropped",
    help="name it as the parameter that it is, or say that it is not needed: `- {drop: NAME}`",
)
MC912 = Rule(
    "MC912",
    "weight-misshaped",
    "error",
    "each tensor has the shape of its parameter",
    help="compare the sizes of the node with those of the checkpoint: is it one of another model?",
)
MC913 = Rule(
    "MC913",
    "weight-rule",
    "error",
    "each rule of `weights` fits a tensor, and makes no name that there is",
    help="correct the names; `optional: true` is for what only some checkpoints have",
)
MC914 = Rule(
    "MC914",
    "weights-unreadable",
    "error",
    "the headers of a checkpoint can be read, and its sizes are those of the model",
    help="look at what `--checkpoint` names: a weight file, or a folder with its config.json",
)

RULES: dict[str, Rule] = {name: value for name, value in sorted(globals().items()) if isinstance(value, Rule)}

_LINK = frozenset({"MC016", "MC207", "MC208", "MC503", "MC504", "MC701", "MC702", "MC803"})
_RESERVED = frozenset(
    {
        "MC410",
        "MC801",
        "MC802",
    }
)


def rule_state(code: str) -> State:
    """`checked`: `mstarc check` reports it. `link`: linking a package does. `weights`: a check with a checkpoint. `reserved`: none yet."""
    if code == MC000.code:
        return "internal"
    if code in _RESERVED:
        return "reserved"
    if code.startswith("MC91"):
        return "weights"
    return "link" if code in _LINK or code.startswith("MC6") else "checked"
