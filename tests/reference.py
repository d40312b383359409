"""Write docs/reference/commands.md from the commands themselves: `python -m tests.reference`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import typer.main
from typer.core import TyperArgument, TyperOption

from shardctl.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"

_HEAD = """\
# Commands

<!-- Written by `make docs` from the commands' own help: do not edit. -->

Options of the program itself stand before the command, a command's own after it.
Every command and subcommand has `-h` and `--help`.
[exit-codes.md](exit-codes.md) says what commands exit with.
[json.md](json.md) says what `-o json` prints.
"""

_COMPLETION = {"--install-completion", "--show-completion"}
"""What typer adds by itself; it concerns the program, so it is told once, of the program."""


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
            for p in self.command.params
            if isinstance(p, TyperOption)
            and not p.hidden
            and not (" " in self.name and _COMPLETION & set(p.opts))
        ]

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
    if entry.arguments:
        lines = [f"| `{argument(each)}` | {_cell(each.help or '')} |" for each in entry.arguments]
        parts.append("\n".join(["| argument | meaning |", "|---|---|", *lines]))
    if entry.options:
        lines = [
            f"| {option(each)} | {_default(each)} | {_cell(_meaning(each))} |"
            for each in entry.options
        ]
        parts.append("\n".join(["| option | default | meaning |", "|---|---|---|", *lines]))
    return "\n\n".join(part for part in parts if part) + "\n"


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
    if one.metavar:
        return one.metavar
    if isinstance(one.default, Enum):
        return "|".join(str(member.value) for member in type(one.default))
    return (one.name or "value").upper()


def _default(one: TyperOption) -> str:
    if one.required:
        return "required"
    if one.is_flag or one.default is None:
        return ""
    return f"`{one.default.value if isinstance(one.default, Enum) else one.default}`"


def _meaning(one: TyperOption) -> str:
    said = one.help or ""
    if one.envvar:
        said += f" Or set `${one.envvar}`."
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
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(render(), encoding="utf-8")
