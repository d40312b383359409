"""How results are printed: tables, JSON, and the question before a change."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import typer

from shardctl.cli.messages import Messages
from shardctl.cli.printed import PRINTED
from shardctl.errors import Interrupted, Refused, ShardctlError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console


def print_json(value: Any) -> None:
    """Print one JSON value on one line of standard output."""
    PRINTED.json = True
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_tsv(rows: Iterable[Sequence[str]]) -> None:
    """Print rows as tab-separated values; no cell may have a tab or line break."""
    for row in rows:
        print("\t".join(row))


def print_csv(rows: Iterable[Sequence[str | None]]) -> None:
    """Print rows, the header first, as comma-separated values (RFC 4180, but with LF)."""
    for row in rows:
        print(",".join(map(_csv, row)))


def _csv(cell: str | None) -> str:
    r"""Write a cell as PostgreSQL's COPY does: NULL is empty, an empty text is quoted.

    >>> print(*map(_csv, ("2-3", "2,3", 'a "b" c', "", None)), sep="|")
    2-3|"2,3"|"a ""b"" c"|""|
    """
    if cell is None:
        return ""
    plain = cell and not set(cell) & set(',"\r\n') and cell == cell.strip()
    return cell if plain else '"' + cell.replace('"', '""') + '"'


def console() -> Console:
    """Give what prints on standard output; where that is no terminal, lines are never folded."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, coloured: str = ""
) -> None:
    """Print a table for people on standard output; see `tables.fit`."""
    from shardctl.cli import tables

    out, found = console(), list(rows)
    many = len(found) > tables.MANY and not coloured
    if many and (lines := tables.long(out, header, found)) is not None:
        print("\n".join(lines))
    else:
        out.print(tables.fit(header, found, out.width, coloured=coloured))


def plural(count: int, noun: str) -> str:
    """Write a number with its noun.

    >>> plural(1, "pooler"), plural(2000, "shard")
    ('1 pooler', '2,000 shards')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable(text: str, *, keep: str = "") -> str:
    r"""Write a text without control characters, but for those to keep.

    >>> printable("a\x1b[2J\nb"), printable("a\nb", keep="\n")
    ('a\\x1b[2J\\nb', 'a\nb')
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def say(message: str) -> None:
    """Print a text beside the result on standard error."""
    print(folded(message), file=sys.stderr)


def folded(text: str) -> str:
    """Break lines between words where standard error is a terminal, which would do it anywhere."""
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


def say_error(error: ShardctlError) -> None:
    """Print an error and its hint on standard error, with the program's name in red."""
    if isinstance(sys.stderr, Messages) and sys.stderr.as_json:
        sys.stderr.put("error", str(error), hint=error.hint, code=error.code)
        return
    # A message that begins with a place in a file gets no prefix: editors jump to the place.
    program, message = ("", str(error)) if error.located else ("shardctl:", f" {error}")
    hint = f"\n  {error.hint}" if error.hint else ""
    text = folded(f"{program}{message}{hint}")
    if not sys.stderr.isatty():
        print(text, file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    shown = Text.assemble((program, "bold red"), text.removeprefix(program))
    Console(stderr=True, highlight=False).print(shown, soft_wrap=True)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a change; raises declined, Interrupted, and UsageError without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "this command changes the fleet and needs a terminal to ask: nothing was changed",
            hint="add --yes to run it without a terminal",
        )
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort as abort:  # Ctrl-C, or the end of the input
        print(file=sys.stderr)
        raise Interrupted("interrupted: nothing was changed") from abort
    if not agreed:
        raise Refused("declined", "declined: nothing was changed")


def errors_json(error: ShardctlError) -> dict[str, Any]:
    """Return the parts of an error in the shape of docs/reference/json.md."""
    return {"errors": [one.error_json() for one in error.parts()]}
