"""How results are printed: tables, JSON, and the question before a change."""

from __future__ import annotations

import json
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any

import typer

from shardctl import printable
from shardctl.cli import tables
from shardctl.errors import Interrupted, Refused, ShardctlError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|-infinity", re.IGNORECASE | re.ASCII)
_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""With one of these, also as wide characters, a spreadsheet takes a cell for a formula."""


class Printed:
    """What this run has printed as JSON: later errors then go only to standard error."""

    json = False


def print_json(value: Any) -> None:
    """Print one JSON value on one line of standard output."""
    Printed.json = True
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    print(printable.in_json(text))


def emit(
    output: str | None,
    header: Sequence[str],
    rows: Iterable[Sequence[str | None]],
    value: Mapping[str, Any],
    *,
    nothing: str = "",
) -> None:
    """Print a result: rows as a table, TSV or CSV, or `value` with its format number as JSON.

    In place of a table without rows it prints `nothing`. In the table's header, `_` is a space.
    """
    rows = list(rows)
    if output == "json":
        print_json({"format": 1, **value})
    elif output == "tsv":
        print_tsv(rows)
    elif output == "csv":
        print_csv((header, *rows))
    elif rows:
        shown = [[cell or "" for cell in row] for row in rows]
        print_table([name.replace("_", " ") for name in header], shown)
    elif nothing:
        print(nothing)


def print_tsv(rows: Iterable[Sequence[str | None]]) -> None:
    r"""Print rows as COPY reads them: `\N` for NULL, escapes for control characters.

    >>> print_tsv([("a\tb",), (None,), ("c\\d",)])
    a\tb
    \N
    c\\d
    """
    for row in rows:
        print("\t".join(r"\N" if cell is None else printable.in_copy(cell) for cell in row))


def print_csv(rows: Iterable[Sequence[str | None]]) -> None:
    """Print rows, the header first, as comma-separated values (RFC 4180, but with LF)."""
    for row in rows:
        print(",".join(map(_csv, row)))


def _csv(cell: str | None) -> str:
    r"""Write a cell as PostgreSQL's COPY does: NULL is empty, an empty text is quoted.

    But what a spreadsheet would calculate begins with an apostrophe, which makes it a text there.

    >>> print(*map(_csv, ("2-3", "2,3", 'a "b" c', "", None)), sep="|")
    2-3|"2,3"|"a ""b"" c"|""|
    >>> print(*map(_csv, ("-5", "+1.5e3", "-5+1", "=1", "@a", " =1")), sep="|")
    -5|+1.5e3|'-5+1|'=1|'@a|' =1
    """
    if cell is None:
        return ""
    if cell.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(cell):
        cell = f"'{cell}"
    plain = cell and not set(cell) & set(',"\r\n') and cell == cell.strip()
    return cell if plain else '"' + cell.replace('"', '""') + '"'


def width() -> int:
    """Return how long lines of standard output may be: only a terminal has a width."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def draw(text: str) -> None:
    """Print a text that fits, on a terminal with its styles."""
    if sys.stdout.isatty():
        tables.console().print(tables.styled(text), no_wrap=True, overflow="ignore", crop=False)
    else:
        print(text)


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, drops: Sequence[str] = tables.DROPS
) -> None:
    """Print a table for people on standard output; see `tables.fit`."""
    draw(tables.fit(header, rows, width(), drops=drops))


def print_line(text: str) -> None:
    """Print one line of the result, whatever names it has in it; a terminal breaks it at blanks."""
    draw(tables.paragraph(printable.one_line(text), width()))


def plural(count: int, noun: str) -> str:
    """Write a number with its noun.

    >>> plural(1, "pooler"), plural(2000, "shard")
    ('1 pooler', '2,000 shards')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def say(message: str) -> None:
    """Print a line beside the result on standard error."""
    print(folded(printable.message(message)), file=sys.stderr)


def folded(text: str) -> str:
    """Break lines between words where standard error is a terminal, which would do it anywhere."""
    if not sys.stderr.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    return "\n".join(tables.paragraph(line, columns) for line in text.split("\n"))


def say_error(error: ShardctlError) -> None:
    """Print an error and its hint on standard error."""
    # A message that begins with a place in a file gets no prefix: editors jump to the place.
    program, message = ("", str(error)) if error.located else ("shardctl:", f" {error}")
    message, hint = printable.message(message), printable.message(error.hint)
    print(folded(f"{program}{message}" + (f"\n  {hint}" if hint else "")), file=sys.stderr)


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
        agreed = typer.confirm(printable.message(question), err=True)
    except typer.Abort as abort:  # Ctrl-C, or the end of the input
        print(file=sys.stderr)
        raise Interrupted("interrupted: nothing was changed") from abort
    if not agreed:
        raise Refused("declined", "declined: nothing was changed")


def errors_json(error: ShardctlError) -> dict[str, Any]:
    """Return the parts of an error in the shape of docs/reference/json.md."""
    return {"errors": [one.error_json() for one in error.parts()]}
