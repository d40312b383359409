"""How results are printed: tables that fit, JSON, and the question before a change."""

from __future__ import annotations

import json
import re
import shutil
import sys
from itertools import zip_longest
from operator import le
from typing import TYPE_CHECKING, Any

import typer

from shardctl import printable
from shardctl.errors import Interrupted, Refused, ShardctlError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Console
    from rich.text import Text

_MOST = 32
"""A longer word than this is broken, where room is short."""
_GAP, _EDGES = 3, 2
"""Between two columns, and left and right of all."""
_PIECES = re.compile(
    r"\s+"
    r"|(?<!\S)\d+ (?:d|h|min)(?: \d+ (?:h|min|s))?(?=[\s,;)]|$)"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    r"|(?<!\S)\d{1,3}(?:,\d{3}){0,4}(?:\.\d+)?(?: (?:bytes|ms|s|[kMGTP]B?))?(?=[\s;)]|$)"
    r"|[^\s,]*,+|[^\s,]+"
)
"""What is kept whole: words, the parts of a list, a number with its unit, and a moment."""
DROPS = ("up", "version", "by", "started", "rows", "tps", "servers", "disk")
"""Columns that are left out where room is short, this one first."""
_STYLES = re.compile(
    r"(?m)(?P<bold>^.+(?=\n ─))|(?:^ ?|(?<=   ))(?:(?P<red>error|down|unreadable|refused)"
    r"|(?P<yellow>warning|unfinished|unconfirmed)|(?P<cyan>running)|(?P<green>ok|done))"
    r"(?=:|   | *$)"
)
"""Headers, and cells and beginnings of lines that say how bad something is; by their styles."""


def console(*, stderr: bool = False) -> Console:
    """Give what draws on a terminal; the caller escapes the texts."""
    from rich.console import Console

    return Console(file=sys.stderr if stderr else sys.stdout, highlight=False)


def styled(text: str) -> Text:
    """Give a text that is not folded with its styles, for a terminal."""
    from rich.text import Text

    shown = Text(printable.printable(text), no_wrap=True, overflow="crop")
    shown.highlight_regex(_STYLES)
    return shown


def fit(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    width: int,
    *,
    drops: Sequence[str] = DROPS,
) -> str:
    """Draw a table in at most `width` columns of text.

    Where even the longest words and numbers of all columns do not fit side by side, it leaves out
    columns of `drops`, the first one first. If that does not help, each row is a block with a line
    for each of all columns. Nothing is cut off.
    """
    cells = [[printable.printable(cell).replace("\t", r"\t") for cell in row] for row in rows]
    left = [*range(len(header))]
    for name in (*(name for name in drops if name in header), None):
        table = [[row[n] for n in left] for row in (header, *cells)]
        room = width - _EDGES - _GAP * (len(left) - 1)
        widths = _widths([*zip(*table, strict=True)], room)
        if sum(widths) <= room:
            rule = "─" * (sum(widths) + _GAP * (len(widths) - 1))
            first, *rest = ("\n".join(_row(row, widths)) for row in table)
            return "\n".join(["", first, f" {rule} ", *rest, ""])
        left = [n for n in left if header[n] != name]
    names = max(map(len, header))
    widths = [names, max(width - names - _GAP - _EDGES, 1)]
    lines: list[str] = []
    for row in cells:
        lines.append("")
        for one in zip(header, row, strict=True):
            lines += _row(one, widths) if one[1] else ()
    return "\n".join([*lines, ""])


def _row(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    from rich.cells import set_cell_size

    if _plain(cells) and all(map(le, map(len, cells), widths)):
        yield f" {(' ' * _GAP).join(map(str.ljust, cells, widths))} "
        return
    wrapped = map(_wrapped, cells, widths)
    for parts in zip_longest(*wrapped, fillvalue=""):
        yield f" {(' ' * _GAP).join(map(set_cell_size, parts, widths))} "


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Give each column what it needs, the widest less, but none less than its words need."""
    widths = [max(map(len if _plain(cells) else _length, cells)) for cells in columns]
    if sum(widths) <= room:
        return widths
    least = [min(w, max(map(_longest, cells))) for w, cells in zip(widths, columns, strict=True)]
    widths = [max(one, min(width, room)) for width, one in zip(widths, least, strict=True)]
    while sum(widths) > max(room, sum(least)):
        shrinking = (n for n, width in enumerate(widths) if width > least[n])
        widths[max(shrinking, key=widths.__getitem__)] -= 1
    return widths


def _plain(cells: Iterable[str]) -> bool:
    """Tell whether each cell is as wide as it has characters; one question for thousands."""
    text = "".join(cells)
    return text.isascii() and "\n" not in text


def _length(cell: str) -> int:
    """Give the length of the longest line."""
    from rich.cells import cell_len

    return max(map(cell_len, cell.split("\n")))


def _longest(cell: str) -> int:
    """Give the length of the longest piece that is kept whole.

    >>> _longest("one three"), _longest("0-3,17,1000"), _longest("x" * 100)
    (5, 4, 32)
    """
    from rich.cells import cell_len

    return min(_MOST, max((cell_len(piece) for piece in _PIECES.findall(cell)), default=0))


def _wrapped(cell: str, width: int) -> list[str]:
    r"""Break lines between words and after commas, and what is longer still anywhere.

    >>> _wrapped("0-3,17,19-25", 7), _wrapped("one two", 4), _wrapped("abcdef", 4)
    (['0-3,17,', '19-25'], ['one', 'two'], ['abcd', 'ef'])
    """
    return [part for line in cell.split("\n") for part in _lines(line, width)]


def paragraph(line: str, width: int) -> str:
    """Break a line as cells are broken; what comes below begins two columns further right.

    >>> print(paragraph("  kept 1 min 30 s", 14))
      kept
        1 min 30 s
    """
    text = line.lstrip()
    indent = " " * (len(line) - len(text))
    return indent + f"\n{indent}  ".join(_lines(text, max(width - len(indent) - 2, 1)))


def _lines(line: str, width: int) -> Iterator[str]:
    from rich.cells import cell_len, chop_cells

    if cell_len(line) <= width:
        yield line
        return
    current = ""
    for piece in _PIECES.findall(line):
        if cell_len(current + piece.rstrip()) <= width:
            current += piece
            continue
        if current.strip():
            yield current.rstrip()
        *whole, current = chop_cells(piece.lstrip(), width) or [""]
        yield from whole
    if current.strip():
        yield current.rstrip()


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
        console().print(styled(text), no_wrap=True, overflow="ignore", crop=False)
    else:
        print(text)


def print_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, drops: Sequence[str] = DROPS
) -> None:
    """Print a table for people on standard output; see `fit`."""
    draw(fit(header, rows, width(), drops=drops))


def print_line(text: str) -> None:
    """Print one line of the result, whatever names it has in it; a terminal breaks it at blanks."""
    draw(paragraph(printable.one_line(text), width()))


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
    return "\n".join(paragraph(line, columns) for line in text.split("\n"))


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
