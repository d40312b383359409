"""Write docs/reference from commands, steps and states: `python -m tests.reference`.

Of docs/verify.md, it writes what each check is about, and the codes and severities in its table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import typer.main
from typer.core import TyperArgument, TyperOption

from shardctl.checks.verify import CHECKS, OF_EVERY
from shardctl.cli import examples
from shardctl.cli.app import app
from shardctl.cli.command import ANYWHERE
from shardctl.moves import clone_cutover, stream_cutover, undoing
from shardctl.moves.service import METHODS, REVERSE
from shardctl.state.journal import TRANSITIONS, MoveState
from tests import reference_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Rule
    from shardctl.moves.sub_step import SubStep

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
FILE = REFERENCE / "commands.md"
MOVES = REFERENCE / "moves.md"
VERIFY = REFERENCE.parent / "verify.md"

_HEAD = """\
# Commands

<!-- Written by `make docs` from the commands' own help: do not edit. -->

`--topology` and `--verbose` may be before the command or after it.
A `<duration>` is a number with `ms`, `s`, `m`, `h` or `d`, such as `500ms` or `10m`.
A `<size>` is a number with `k`, `M`, `G` or `T`, such as `50M` or `20GB`.
Every command and subcommand has `-h` and `--help`.
[Exit codes](exit-codes.md) and [the output of `-o json`](json.md) have pages of their own.
"""

_MOVES_HEAD = """\
# Moves: steps and states

<!-- Written by `make docs` from the list of steps and the journal's states: do not edit. -->

[How a move works](../moves.md) explains the steps and their order.
These are the names that `shardctl moves show` and `-o json` use.
"""

_TRANSITIONS_HEAD = """\
## Transitions

shardctl refuses every other transition.
*operator* is shardctl at an operator's command.
*source guard* is the session in the source that ends a cutover whose time is up.
The guards on the poolers' hosts change no state.
"""

_SUB_STEPS_HEAD = """\
The cutover consists of these, in this order; the timeline of a move has the milliseconds of each.
*asks* are round trips that the sub-step waits for:
`s` to the source, `t` to the target, `p` to all poolers; `st` is both at the same time.
Up to `decide`, shardctl undoes all of them if one fails.
The timeline also has step `confirm`.
"""

STATES = {
    MoveState.reserved: "the move has begun; the clone is copied or follows",
    MoveState.undone: "a cutover was undone; it may be tried again",
    MoveState.fenced: "the source has renamed the moved schemas, or refuses writes to them",
    MoveState.drained: "no session can write to them there",
    MoveState.promoting: "the target becomes a primary",
    MoveState.claimed: "the target owns them",
    MoveState.routed: "poolers, maps and the topology name the target",
    MoveState.unconfirmed: "over, and not proved equal row for row",
    MoveState.done: "over: compared, or accepted as it is",
    MoveState.aborted: "`moves abort` has ended it; the source owns its shards as before",
}

_COMPLETION = {
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell, to copy it or customize the"
    " installation.",
}
"""What typer adds by itself, whatever it says of it; it is told once, of the program."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A command or a group with its whole name, such as `shardctl sandbox up`."""

    name: str
    command: Any
    group: bool

    @property
    def options(self) -> list[TyperOption]:
        """The options that the reference tells, in the order of the help."""
        return [
            p
            for p in (*(() if " " in self.name else ANYWHERE), *self.command.params)
            if isinstance(p, TyperOption)
            and not p.hidden
            and not (" " in self.name and _COMPLETION.keys() & {*p.opts})
        ]

    def takes(self, option: str) -> bool:
        """Tell whether the command has this option itself."""
        return " " in self.name and any(option in each.opts for each in self.options)

    @property
    def arguments(self) -> list[TyperArgument]:
        """The arguments, in their order."""
        return [p for p in self.command.params if isinstance(p, TyperArgument) and not p.hidden]


def entries() -> list[Entry]:
    """List the program, its commands and theirs, in the order of the help."""
    return list(_below("shardctl", typer.main.get_command(app)))


def _below(name: str, command: Any) -> Iterator[Entry]:
    group = hasattr(command, "list_commands")
    yield Entry(name, command, group)
    if group:
        ctx = typer.Context(command, info_name=name)
        for each in command.list_commands(ctx):
            yield from _below(f"{name} {each}", command.get_command(ctx, each))


def render() -> str:
    """Compose the whole file; nothing in it depends on the terminal."""
    return "\n".join([_HEAD, *map(_section, entries())])


def _section(entry: Entry) -> str:
    parts = [
        f"{'##' if entry.name.count(' ') < 2 else '###'} {entry.name}",
        f"```text\n{usage(entry)}\n```",
        _prose(entry.command.help or ""),
    ]
    lines = [f"# {purpose}\n$ {typed}" for typed, purpose in examples.of(entry.name)]
    parts.append("\n".join(["```console", *lines, "```"]))
    if entry.arguments:
        lines = [f"| `{argument(each)}` | {_cell(each.help or '')} |" for each in entry.arguments]
        parts.append("\n".join(["| argument | meaning |", "|---|---|", *lines]))
    if entry.options:
        lines = [
            f"| {option(each)} | {_default(each)} | {_cell(meaning(each))} |"
            for each in entry.options
        ]
        parts.append("\n".join(["| option | default | meaning |", "|---|---|---|", *lines]))
    return "\n\n".join(part for part in parts if part) + "\n"


_METHODS = {
    "method clone": "copies the whole source server onto a node without shards, and promotes the "
    "copy",
    "method stream": "copies the shards to a node that serves already, which follows by logical "
    "replication",
    "a reverse": "gives shards back to the node from which they were streamed, without a copy",
}


def render_moves() -> str:
    """Compose the page of steps, sub-steps and states; fails where one has no sentence."""
    parts = [_MOVES_HEAD]
    methods = {f"method {name}": steps for name, steps in METHODS.items()} | {"a reverse": REVERSE}
    for title, steps in methods.items():
        lines = [
            f"| {n} | `{step.name}` | {step.sentence} | {'yes' if step.undo else ''} |"
            for n, step in enumerate(steps, 1)
        ]
        head = "| | step | it | `moves abort` undoes it |\n|---|---|---|---|"
        again = "can" if title == "method stream" else "cannot"
        told = (
            f"It {_METHODS[title]}.\nAfterwards the source {again} have its shards back without "
            "another copy.\n"
        )
        parts.append("\n".join([f"## Steps of {title}\n", told, head, *lines, ""]))
    parts += ["## Sub-steps\n", _SUB_STEPS_HEAD]
    cutovers = {
        "### A clone": clone_cutover.CUTOVER,
        "### A stream": stream_cutover.CUTOVER,
    }
    for title, one in cutovers.items():
        parts.append(_sub_steps(title, one.rows))
    parts.append(_sub_steps("### When a cutover is undone", undoing.SUB_STEPS))
    lines = [f"| `{s}` | {STATES[s]} | {', '.join(f'`{c}`' for c in s.can)} |" for s in MoveState]
    head = "| state | means | an operator can |\n|---|---|---|"
    parts.append("\n".join(["## States in the journal\n", head, *lines, ""]))
    lines = [
        f"| `{t.before}` | `{t.after}` | {t.sentence} | {', '.join(t.who)} |" for t in TRANSITIONS
    ]
    head = "| from | to | when | who |\n|---|---|---|---|"
    parts.append("\n".join([_TRANSITIONS_HEAD, head, *lines, ""]))
    drawn = [f"    {t.before} --> {t.after}: {t.sentence.replace('`', '')}" for t in TRANSITIONS]
    first = next(iter(MoveState))
    ends = [f"    {s} --> [*]" for s in MoveState if s.terminal]
    diagram = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}: reserve", *drawn, *ends]
    parts.append("\n".join([*diagram, "```", ""]))
    return "\n".join(parts)


def render_verify() -> str:
    """Compose the page about findings; what a code means and how to fix it is kept as it is there.

    A code that is new in the page is explained by what its rule expects, and its hint.
    """
    *parts, _ = re.split(r"(?m)^## ", VERIFY.read_text(encoding="utf-8") + "\n## ")
    sections = dict(part.split("\n", 1) for part in parts[1:])
    written: dict[str, Mapping[str, Rule]] = {"A check that could not be made": OF_EVERY}
    for check in CHECKS.values():
        about, (_, *rest) = check.about, sections.get(check.name, "\n\n").lstrip().split("\n", 1)
        sections[check.name] = f"\n{about[0].upper()}{about[1:]}.\n{''.join(rest)}"
        written[check.name] = check.rules.of
    for name, rules in written.items():
        kept = {
            row[1]: row[2]
            for row in re.finditer(r"(?m)^\| `(\w+)` \|[^|]*\| (.+)\n", sections[name])
        }
        rows = (
            f"| `{code}` | {' or '.join(rule.severities)} | "
            f"{kept.get(code, f'{rule.expected} | {rule.hint} |')}\n"
            for code, rule in rules.items()
        )
        head, _, after = sections[name].partition("| code |")
        line, rule_, *others = after.splitlines(keepends=True)
        others = [one for one in others if not one.startswith("| `")]
        sections[name] = f"{head}| code |{line}{rule_}{''.join(rows)}{''.join(others)}"
    ordered = [*(name for name in sections if name not in CHECKS), *CHECKS]
    return (parts[0] + "".join(f"## {name}\n{sections[name]}" for name in ordered)).rstrip() + "\n"


def _sub_steps(title: str, rows: Sequence[SubStep]) -> str:
    """List sub-steps; the tables that are carried out are what is read here."""
    lines = [
        f"| `{one.name}` | {one.sentence} | {one.asks} | {'yes' if one.may_stop else ''} |"
        for one in rows
    ]
    head = "| sub-step | it | asks | may stop before it |\n|---|---|---|---|"
    return "\n".join([f"{title}\n", head, *lines, ""])


def usage(entry: Entry) -> str:
    """Write how a command is called."""
    pieces = [entry.name, *(["[OPTIONS]"] if entry.options else [])]
    pieces += [argument(each) for each in entry.arguments]
    return " ".join([*pieces, *(["COMMAND"] if entry.group else [])])


def argument(one: TyperArgument) -> str:
    """Write an argument: `KEY...`, in brackets where it may be left out."""
    name = (one.metavar or one.name or "").strip("[]{}.").upper()
    name += "..." if one.nargs == -1 else ""
    return name if one.required else f"[{name}]"


def option(one: TyperOption) -> str:
    """Write an option's names, and what follows them."""
    names = sorted((*one.opts, *one.secondary_opts), key=len)
    value = "" if one.is_flag else f" {_value(one)}"
    return f"`{', '.join(names)}{value}`".replace("|", r"\|")


def _value(one: TyperOption) -> str:
    kind = one.type_descriptor
    if kind.choices is not None:
        return f"<{'|'.join(map(str, kind.choices))}>"
    return one.metavar or ("<n>" if kind.annotation in (int, float) else f"<{one.name}>")


def _default(one: TyperOption) -> str:
    if one.required:
        return "required"
    if one.is_flag or one.default is None:
        return ""
    return f"`{one.default}`"


def meaning(one: TyperOption) -> str:
    """Write what an option is for, and its bounds."""
    said = _COMPLETION.get(one.opts[0], one.help or "")
    low, high = one.min, one.max
    if low is not None and high is not None:
        said += f" From {low} to {high}."
    elif low is not None:
        said += f" At least {low}."
    return said


def _prose(text: str) -> str:
    """Put every sentence on a line of its own, whatever the docstring's width was."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return "\n\n".join(re.sub(r"(?<=[.?!]) (?=[A-Z])", "\n", each) for each in paragraphs)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    REFERENCE.mkdir(parents=True, exist_ok=True)
    FILE.write_text(render(), encoding="utf-8")
    MOVES.write_text(render_moves(), encoding="utf-8")
    VERIFY.write_text(render_verify(), encoding="utf-8")
    reference_errors.FILE.write_text(reference_errors.render(), encoding="utf-8")
