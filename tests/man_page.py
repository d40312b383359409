"""Write the man page from the commands' own texts: `python -m tests.man_page`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardctl.cli import examples
from tests import reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typer.core import TyperOption

FILE = reference.REFERENCE / "shardctl.1"

_HEAD = r"""
.\" Written by `make docs` from the commands' own help: do not edit.
.TH SHARDCTL 1 "" shardctl "User Commands"
.SH NAME
shardctl \- operate a sharded PostgreSQL fleet that one topology.yaml describes
.SH SYNOPSIS
.B shardctl
.RI [ OPTIONS ]
.I COMMAND
.RI [ ARGUMENTS ]
.SH DESCRIPTION
"""

_TAIL = r"""
.SH FILES
.TP
.I topology.yaml
The cluster, where neither \-\-topology nor SHARDCTL_TOPOLOGY names another file.
.TP
.I $XDG_STATE_HOME/shardctl/
The logs, one a day; ~/.local/state/shardctl/ where the variable is not set.
.SH ENVIRONMENT
.TP
.B SHARDCTL_TOPOLOGY
The topology file.
.TP
.B NO_COLOR
Print without colours.
.PP
Connections are libpq's: PGPASSFILE, PGSERVICEFILE and its other variables count.
.SH SEE ALSO
.BR psql (1),
.BR pg_basebackup (1),
.BR pgbouncer (1)
"""


def render() -> str:
    """Compose the page; nothing in it depends on the terminal, the version or the day."""
    program, *commands = reference.entries()
    lines = [
        _HEAD.strip(),
        *_help(program.command.help or ""),
        *_VALUES,
        ".SH OPTIONS",
        *_options(program.options),
        ".SH COMMANDS",
    ]
    for entry in commands:
        lines += [f".SS {_text(reference.usage(entry))}", *_help(entry.command.help or "")]
        for argument in entry.arguments:
            named = _text(reference.argument(argument))
            lines += [".TP", f".I {named}", _text(argument.help or "")]
        lines += [*_options(entry.options), *_examples(entry.name)]
    lines += [".SH EXIT STATUS", *_exit_codes(), ".SH EXAMPLES", *_examples(program.name)]
    return "\n".join([*lines, _TAIL.strip(), ""])


_VALUES = (
    ".PP",
    "\\-\\-topology and \\-\\-verbose may be before the command or after it.",
    "A <duration> is a number with ms, s, m, h or d, such as 500ms or 10m.",
    "A <size> is a number with k, M, G or T, such as 50M or 20GB.",
)


def _exit_codes() -> Iterator[str]:
    """Take them from the table of docs/reference/exit-codes.md."""
    text = (reference.REFERENCE / "exit-codes.md").read_text(encoding="utf-8")
    for code, meaning in re.findall(r"(?m)^\| (\d+) \| (.*?) \|", text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", meaning).replace("`", "")
        yield from (".TP", f".B {code}", _text(plain))


def _examples(name: str) -> Iterator[str]:
    for typed, purpose in examples.of(name):
        yield from (".PP", _text(f"{purpose}:"), ".PP", ".nf", ".RS", _text(typed), ".RE", ".fi")


def _options(options: Iterable[TyperOption]) -> Iterator[str]:
    for option in options:
        named = reference.option(option).strip("`").replace(r"\|", "|")
        yield from (".TP", f".B {_text(named)}", _text(reference.meaning(option).replace("`", "")))


def _help(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield from (".PP", _text(" ".join(paragraph.split()).replace("`", "")))


def _text(text: str) -> str:
    r"""Escape what roff would take for its own.

    >>> print(_text(".so -x\\"))
    \&.so \-x\e
    """
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
