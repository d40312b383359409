"""Decodes many ids to lines of text, fast and in constant memory."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from shardctl.ids import times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shardctl.ids.layout import Layout

_HEX = re.compile(r"\s*0[xX]([0-9a-fA-F]{1,16})\s*")
_NOWHERE = -1
"""Stands for a shard without a place."""

_LINES = {
    "table": "%20d  %s  %6d  %8d%s\n",
    "tsv": "%d\t%s\t%d\t%d%s\n",
    "csv": "%d,%s,%d,%d%s\n",
    "json": '{"id":"%d","time":"%s","shard":%d,"sequence":%d%s}\n',
}


class Place(NamedTuple):
    """The schema and node of a shard."""

    schema: str
    node: str


class Decoder:
    """Turns numbers as text into lines of tsv, csv, JSON or a table with fixed columns.

    With `places`, each line ends with schema and node; `unplaced` collects the shards that are not
    among them, whose schema and node are empty. `good` and `bad` count the ids.
    """

    def __init__(self, layout: Layout, output: str, places: Mapping[int, Place] | None) -> None:
        self._layout = layout
        self._low, self._high = layout.lowest_id, layout.highest_id
        self._time_shift = layout.shard_bits + layout.sequence_bits
        self._time_mask = (1 << layout.time_bits) - 1
        self._line = _LINES[output]
        nowhere = {_NOWHERE: Place("", "")}
        self._tails = None if places is None else _tails(output, {**places, **nowhere})
        self.header = _header(output, places)
        self.good = 0
        self.bad = 0
        self.unplaced: set[int] = set()

    def decode(
        self, numbered: Iterable[tuple[int, str]], complain: Callable[[int, str], None]
    ) -> str:
        """Return the lines of a block of numbers; bad ones go to `complain` with their position.

        Skips empty lines.
        """
        layout, line, tails = self._layout, self._line, self._tails
        sequence_bits, shard_mask = layout.sequence_bits, layout.max_shard
        sequence_mask = (1 << sequence_bits) - 1
        lines: list[str] = []
        for position, text in numbered:
            if not text.strip():
                continue
            try:
                number, moment = self._read(text)
            except ValueError as error:
                self.bad += 1
                complain(position, str(error))
                continue
            shard = number >> sequence_bits & shard_mask
            tail = ""
            if tails and not (tail := tails.get(shard, "")):
                tail = tails[_NOWHERE]
                self.unplaced.add(shard)
            lines.append(line % (number, moment, shard, number & sequence_mask, tail))
        self.good += len(lines)
        return "".join(lines)

    def _read(self, text: str) -> tuple[int, str]:
        """Read an id, decimal or as 0x and up to 16 digits, and its time; raises ValueError."""
        layout = self._layout
        try:
            number = int(text)
        except ValueError:
            digits = _HEX.fullmatch(text)
            if digits is None:
                raise ValueError(f"{_shown(text)} is not a number") from None
            number = int(digits[1], 16)
            number -= (1 << 64) if number >= 1 << 63 else 0
        if "_" in text:
            raise ValueError(f"{_shown(text)} is not a number")
        low, high = self._low, self._high
        if not low <= number <= high:
            raise ValueError(
                f"{_shown(text)} is out of range: ids of this layout are {low} to {high}"
            )
        ticks = number >> self._time_shift & self._time_mask
        moment = times.render(layout.epoch_ms + ticks * layout.tick_ms)
        if moment.startswith("ms:"):
            raise ValueError(f"the time of {number} is outside the years 1 to 9999")
        return number, moment


def _tails(output: str, places: Mapping[int, Place]) -> dict[int, str]:
    """Return the end of a line for each shard."""
    if output == "json":
        return {
            shard: f',"schema":{json.dumps(p.schema or None)},"node":{json.dumps(p.node or None)}'
            for shard, p in places.items()
        }
    if output == "csv":
        return {shard: f",{_csv(p)}" for shard, p in places.items()}
    gap = "  " if output == "table" else "\t"
    width = _schema_width(places) if output == "table" else 0
    return {shard: f"{gap}{p.schema:<{width}}{gap}{p.node}" for shard, p in places.items()}


def _csv(place: Place) -> str:
    """Return the two last columns, quoted if needed.

    >>> _csv(Place("s,5", "b"))
    '"s,5",b'
    """
    quoted = ('"' + text.replace('"', '""') + '"' for text in place)
    return ",".join(q if set(q[1:-1]) & set(',"\r\n') else q[1:-1] for q in quoted)


def _header(output: str, places: Mapping[int, Place] | None) -> str:
    if output == "csv":
        return f"id,time,shard,sequence{',schema,node' if places else ''}\n"
    if output != "table":
        return ""
    tail = f"  {'schema':<{_schema_width(places)}}  node" if places else ""
    return f"{'id':>20}  {'time':<24}  {'shard':>6}  {'sequence':>8}{tail}\n"


def _schema_width(places: Mapping[int, Place]) -> int:
    return max([6, *(len(place.schema) for place in places.values())])


def _shown(text: str) -> str:
    short = text.strip()
    return repr(short if len(short) <= 40 else short[:37] + "...")
