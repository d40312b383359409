"""How results are printed: tables, JSON, and the question before a change."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

import typer

from shardctl.cli.options import Report
from shardctl.cli.printed import PRINTED
from shardctl.errors import Interrupted, Refused, ShardctlError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def print_json(value: Any) -> None:
    """Print one JSON value on one line of standard output."""
    PRINTED.json = True
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_tsv(rows: Iterable[Sequence[str]]) -> None:
    """Print rows as tab-separated values; None of the columns holds a tab or line break."""
    for row in rows:
        print("\t".join(row))


def print_csv(rows: Iterable[Sequence[str | None]]) -> None:
    """Print rows, the header among them, as comma-separated values (RFC 4180, but for LF)."""
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


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table for people on standard output."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # Where nobody looks at a terminal, lines are never folded.
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)


def plural(count: int, noun: str) -> str:
    """Write a number with its noun.

    >>> plural(1, "pooler"), plural(2000, "shard")
    ('1 pooler', '2,000 shards')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def say(message: str) -> None:
    """Tell something beside the result, on standard error."""
    print(message, file=sys.stderr)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a change; raises declined, Interrupted, UsageError where nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "this changes the fleet, and there is no terminal to ask on: nothing was changed",
            hint="add --yes, which answers the question",
        )
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort as abort:  # Ctrl-C, or the end of the input
        print(file=sys.stderr)
        raise Interrupted("interrupted: nothing was changed") from abort
    if not agreed:
        raise Refused("declined", "declined: nothing was changed")


@contextlib.contextmanager
def always_json(output: Report) -> Iterator[None]:
    """With `-o json`, print an object with the errors when there will be no other result."""
    try:
        yield
    except ShardctlError as error:
        if output is Report.json:
            print_json({"format": 1, **errors_json(error)})
        raise


def errors_json(error: ShardctlError) -> dict[str, Any]:
    """Give the errors that one is made of, as JSON has them."""
    return {"errors": [one.error_json() for one in error.parts()]}
