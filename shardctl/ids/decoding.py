"""Decodes many ids to lines of text, fast and in constant memory."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from shardctl.ids.times import DAY_MS, date_text, time_text

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
        self._line = _LINES[output]
        none = Place("-", "-") if output == "table" else Place("", "")
        self._tails = None if places is None else _tails(output, {**places, _NOWHERE: none})
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
        low, high, bits = layout.lowest_id, layout.highest_id, layout.sequence_bits
        time_shift, time_mask = layout.shard_bits + bits, (1 << layout.time_bits) - 1
        shard_mask, sequence_mask = layout.max_shard, (1 << bits) - 1
        epoch, tick = layout.epoch_ms, layout.tick_ms
        lines: list[str] = []
        add = lines.append
        for position, text in numbered:
            try:
                number = int(text)
            except ValueError:
                if not text.strip():
                    continue
                parsed = _unusual(text)
                if parsed is None:
                    self._refuse(complain, position, f"{_shown(text)} is not a number")
                    continue
                number = parsed
            if number < low or number > high or "_" in text:
                self._refuse(complain, position, _why_not(text, low, high))
                continue
            shard = number >> bits & shard_mask
            day, rest = divmod(epoch + (number >> time_shift & time_mask) * tick, DAY_MS)
            try:
                moment = f"{date_text(day)}T{time_text(rest // 1000)}.{rest % 1000:03d}Z"
            except OverflowError:
                self._refuse(
                    complain, position, f"the time of {number} is outside the years 1 to 9999"
                )
                continue
            tail = ""
            if tails is not None and (tail := tails.get(shard, "")) == "":
                tail = tails[_NOWHERE]
                self.unplaced.add(shard)
            add(line % (number, moment, shard, number & sequence_mask, tail))
        self.good += len(lines)
        return "".join(lines)

    def _refuse(self, complain: Callable[[int, str], None], position: int, reason: str) -> None:
        self.bad += 1
        complain(position, reason)


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


def _unusual(text: str) -> int | None:
    """Parse 0x and up to 16 hex digits as a bigint; else None."""
    digits = _HEX.fullmatch(text)
    if digits is None:
        return None
    bits = int(digits[1], 16)
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def _why_not(text: str, low: int, high: int) -> str:
    if "_" in text:
        return f"{_shown(text)} is not a number"
    return f"{_shown(text)} is out of range: ids of this layout are {low} to {high}"


def _shown(text: str) -> str:
    short = text.strip()
    return repr(short if len(short) <= 40 else short[:37] + "...")
