"""What commands print, from bytes in pieces to text and lines, the same on every host."""

from __future__ import annotations

import codecs
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Text:
    r"""Collects output as text: UTF-8 with errors replaced, every kind of line end as `\n`.

    >>> text = Text()
    >>> for piece in (b"caf\xc3", b"\xa9\r", b"\n\xff"):
    ...     text.feed(piece)
    >>> text.end()
    'café\n\ufffd'
    """

    def __init__(self) -> None:
        self._decoder = io.IncrementalNewlineDecoder(
            codecs.getincrementaldecoder("utf-8")("replace"), translate=True
        )
        self._parts: list[str] = []

    def feed(self, piece: bytes) -> None:
        """Take the next bytes."""
        self._parts.append(self._decoder.decode(piece))

    def end(self) -> str:
        """Give the whole; nothing comes any more."""
        return "".join([*self._parts, self._decoder.decode(b"", final=True)])


class Lines(Text):
    r"""Hands output on line by line, without the line ends, and keeps none of it.

    >>> lines = Lines(print)
    >>> for piece in (b"one\ntw", b"o\n\nthree"):
    ...     lines.feed(piece)
    one
    two
    <BLANKLINE>
    >>> lines.end()
    three
    ''
    """

    def __init__(self, line: Callable[[str], None]) -> None:
        super().__init__()
        self._line = line

    def feed(self, piece: bytes) -> None:
        """Take the next bytes, and hand on the lines that they end."""
        self._cut(self._decoder.decode(piece))

    def end(self) -> str:
        """Hand on the last line, if it has no end; give the empty text."""
        self._cut(self._decoder.decode(b"", final=True))
        last, self._parts = "".join(self._parts), []
        if last:
            self._line(last)
        return ""

    def _cut(self, text: str) -> None:
        first, *more = text.split("\n")
        self._parts.append(first)
        for begun in more:
            line, self._parts = "".join(self._parts), [begun]
            self._line(line)
