"""Tables that fit: cells wrap between words, and rows become blocks where columns do not fit."""

from __future__ import annotations

import re
from itertools import zip_longest
from operator import le
from typing import TYPE_CHECKING

from shardctl.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType
    from rich.segment import Segment

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
DROPS = ("up", "version", "by", "started", "for", "rows", "tps", "servers", "disk")
"""Columns that are left out where room is short, this one first."""
COLOURS = {
    "error": "bold red",
    "down": "bold red",
    "unreadable": "bold red",
    "refused": "bold red",
    "warning": "yellow",
    "unfinished": "yellow",
    "unconfirmed": "yellow",
    "running": "cyan",
    "ok": "green",
    "done": "green",
}
"""Of words that say how bad something is; the words stay."""


def fit(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    width: int,
    *,
    drops: Sequence[str] = (),
) -> RenderableType:
    """Make a table that is no wider than `width`; states and roles have COLOURS.

    Where even the longest words and numbers of all columns do not fit side by side, it leaves out
    columns of `drops`, the first one first. If that does not help, each row is a block with a line
    for each of all columns. Nothing is cut off.
    """
    cells = [[printable(cell).replace("\t", r"\t") for cell in row] for row in rows]
    left = [*range(len(header))]
    for name in (*(name for name in drops if name in header), None):
        names, *shown = ([row[n] for n in left] for row in (header, *cells))
        widths = _widths(names, shown, width)
        if widths is not None:
            return _Table(names, shown, widths)
        left = [n for n in left if header[n] != name]
    blocks = [
        line
        for row in cells
        for line in (("", ""), *((n, c) for n, c in zip(header, row, strict=True) if c))
    ]
    names_width = max(map(len, header))
    return _Table((), blocks, [names_width, max(width - names_width - _GAP - _EDGES, 1)])


class _Table:
    """A table that fits already: rich would take a millisecond for each row of its own tables."""

    def __init__(
        self, header: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int]
    ) -> None:
        self._header, self._rows, self._widths = header, rows, widths

    def __rich_console__(self, console: object, options: object) -> Iterator[Segment]:
        """Draw the header, a rule, and the rows; without a header, their first cells are names."""
        from rich.segment import Segment

        del console, options
        if self._header:
            rule = "─" * (sum(self._widths) + _GAP * (len(self._widths) - 1))
            yield Segment("\n")
            yield from self._row(self._header, ["bold"] * len(self._header))
            yield Segment(f" {rule} \n")
        for row in self._rows:
            names = self._header or ("", row[0])
            yield from self._row(row, [_colour(*one) for one in zip(names, row, strict=True)])
        yield Segment("\n")

    def _row(self, row: Sequence[str], styles: Sequence[str]) -> Iterator[Segment]:
        from rich.cells import set_cell_size
        from rich.segment import Segment
        from rich.style import Style

        if _plain(row) and not any(styles) and all(map(le, map(len, row), self._widths)):
            yield Segment(f" {(' ' * _GAP).join(map(str.ljust, row, self._widths))} \n")
            return
        cells = (_wrapped(*one).split("\n") for one in zip(row, self._widths, strict=True))
        for parts in zip_longest(*cells, fillvalue=""):
            for n, (part, width) in enumerate(zip(parts, self._widths, strict=True)):
                yield Segment(" " * (_GAP if n else 1))
                yield Segment(set_cell_size(part, width), Style.parse(styles[n]))
            yield Segment(" \n")


def _colour(name: str, cell: str) -> str:
    return COLOURS.get(cell, "") if name in {"state", "role"} else ""


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Give each column what it needs, the widest less, or None where words do not fit."""
    columns = [*zip(header, *rows, strict=True)]
    room = width - _EDGES - _GAP * (len(header) - 1)
    widths = [max(map(len if _plain(cells) else _length, cells)) for cells in columns]
    if sum(widths) <= room:
        return widths
    least = [min(w, max(map(_longest, cells))) for w, cells in zip(widths, columns, strict=True)]
    if sum(least) > room:
        return None
    while (excess := sum(widths) - room) > 0:
        shrinking = [n for n, width in enumerate(widths) if width > least[n]]
        widest = max(widths[n] for n in shrinking)
        few = [n for n in shrinking if widths[n] == widest]
        below = [widths[n] for n in shrinking if widths[n] < widest]
        down_to = max([*below, widest - -(-excess // len(few))])
        for n in few:
            widths[n] = max(down_to, least[n])
    return widths


def _plain(cells: Iterable[str]) -> bool:
    """Tell whether each cell is as wide as it has characters; one question for thousands."""
    text = "".join(cells)
    return text.isascii() and "\n" not in text


def _length(cell: str) -> int:
    """Give the length of the longest line."""
    if _plain((cell,)):
        return len(cell)
    from rich.cells import cell_len

    return max(map(cell_len, cell.split("\n")))


def _longest(cell: str) -> int:
    """Give the length of the longest piece that is kept whole.

    >>> _longest("one three"), _longest("0-3,17,1000"), _longest("x" * 100)
    (5, 4, 32)
    """
    from rich.cells import cell_len

    return min(_MOST, max((cell_len(piece) for piece in _PIECES.findall(cell)), default=0))


def _wrapped(cell: str, width: int) -> str:
    r"""Break lines between words and after commas, and what is longer still anywhere.

    >>> _wrapped("0-3,17,19-25", 7), _wrapped("one two", 4), _wrapped("abcdef", 4)
    ('0-3,17,\n19-25', 'one\ntwo', 'abcd\nef')
    """
    if _length(cell) <= width:
        return cell
    return "\n".join(part for line in cell.split("\n") for part in _lines(line, width))


def paragraph(line: str, width: int) -> str:
    """Break a line as cells are broken; what comes below begins where the line does.

    >>> print(paragraph("  kept 1 min 30 s", 14))
      kept
      1 min 30 s
    """
    text = line.lstrip()
    indent = " " * (len(line) - len(text))
    return indent + f"\n{indent}".join(_lines(text, width - len(indent)))


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
