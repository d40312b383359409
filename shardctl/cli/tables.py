"""Tables that fit: cells wrap between words, and rows become blocks where columns do not fit."""

from __future__ import annotations

import re
import sys
from itertools import zip_longest
from operator import le
from typing import TYPE_CHECKING

from shardctl.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
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
DROPS = ("up", "version", "by", "started", "for", "rows", "tps", "servers", "disk")
"""Columns that are left out where room is short, this one first."""
_STYLES = re.compile(
    r"(?m)(?P<bold>^.+(?=\n ─))|(?:^ ?|(?<=   ))(?:(?P<red>error|down|unreadable|refused)"
    r"|(?P<yellow>warning|unfinished|unconfirmed)|(?P<cyan>running)|(?P<green>ok|done))"
    r"(?=:|   | *$)"
)
"""Headers, and cells and beginnings of lines that say how bad something is; by their styles."""


def console(*, stderr: bool = False) -> Console:
    """Give what draws on a terminal, and escapes the texts in what it draws."""
    from rich.console import Console

    class Screen(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for one in super().render(renderable, options):
                yield one if one.control else one._replace(text=printable(one.text))

    return Screen(file=sys.stderr if stderr else sys.stdout, highlight=False)


def styled(text: str) -> Text:
    """Give a text that is not folded with its styles, for a terminal."""
    from rich.text import Text

    shown = Text(text, no_wrap=True, overflow="crop")
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
    cells = [[printable(cell).replace("\t", r"\t") for cell in row] for row in rows]
    left = [*range(len(header))]
    for name in (*(name for name in drops if name in header), None):
        table = [[row[n] for n in left] for row in (header, *cells)]
        if (widths := _widths([*zip(*table, strict=True)], width)) is not None:
            rule = "─" * (sum(widths) + _GAP * (len(widths) - 1))
            first, *rest = ("\n".join(_row(row, widths)) for row in table)
            return "\n".join(["", first, f" {rule} ", *rest, ""])
        left = [n for n in left if header[n] != name]
    names_width = max(map(len, header))
    widths = [names_width, max(width - names_width - _GAP - _EDGES, 1)]
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


def _widths(columns: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Give each column what it needs, the widest less, or None where words do not fit."""
    room = width - _EDGES - _GAP * (len(columns) - 1)
    widths = [max(map(len if _plain(cells) else _length, cells)) for cells in columns]
    if sum(widths) <= room:
        return widths
    least = [min(w, max(map(_longest, cells))) for w, cells in zip(widths, columns, strict=True)]
    if sum(least) > room:
        return None
    widths = [min(width, room) for width in widths]
    while sum(widths) > room:
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
