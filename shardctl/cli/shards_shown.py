"""How shards with their sizes and loads are ordered and written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from shardctl.cli import picture
from shardctl.cli.output import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shardctl.checks.oldest import Oldest
    from shardctl.errors import ShardctlError
    from shardctl.state.shard_loads import ShardLoad


class Sort(StrEnum):
    """The orders of `shards list`."""

    shard = "shard"
    node = "node"
    size = "size"
    rows = "rows"
    tps = "tps"
    oldest = "oldest"
    moved = "moved"


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of the list; `oldest` is None where it was not read, or the shard has no ids."""

    load: ShardLoad
    oldest: Oldest | None = None

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        load, oldest = self.load, self.oldest
        return {
            "shard": load.shard,
            "schema": load.schema,
            "node": load.node,
            "exists": load.exists,
            "size_bytes": load.bytes,
            "rows_estimate": load.rows,
            "writes_per_s": _rounded(load.writes_per_s),
            "scans_per_s": _rounded(load.scans_per_s),
            "oldest_id": str(oldest.id) if oldest else None,
            "oldest_time": oldest.time if oldest else None,
            "move": load.move,
            "moved": _time(load.moved),
        }


_DESCENDING: dict[Sort, Callable[[Shown], float | None]] = {
    Sort.size: lambda one: one.load.bytes,
    Sort.rows: lambda one: one.load.rows,
    Sort.tps: lambda one: one.load.tps,
    Sort.oldest: lambda one: -one.oldest.id if one.oldest else None,
    Sort.moved: lambda one: one.load.moved.timestamp() if one.load.moved else None,
}


def ordered(rows: Iterable[Shown], order: Sort) -> list[Shown]:
    """Sort rows: figures with the largest first and unknown ones last, equal ones by number."""
    by_number = sorted(rows, key=lambda one: (one.load.shard, one.load.node))
    if order is Sort.shard:
        return by_number
    if order is Sort.node:
        return sorted(by_number, key=lambda one: one.load.node)
    figure = _DESCENDING[order]

    def key(one: Shown) -> tuple[bool, float]:
        value = figure(one)
        return value is None, -(value or 0)

    return sorted(by_number, key=key)


@dataclass(frozen=True, slots=True)
class Listed:
    """The whole list, in its order; `sample_s` is None where nothing was counted."""

    cluster: str
    sample_s: float | None
    rows: Sequence[Shown]
    problems: Sequence[ShardctlError]

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "format": 1,
            "cluster": self.cluster,
            "sample_s": self.sample_s,
            "shards": [row.as_json() for row in self.rows],
            "problems": [one.error_json() for one in self.problems],
        }

    def cells(self) -> Iterator[tuple[str | None, ...]]:
        """Yield the rows for programs, always with all COLUMNS; None is unknown."""
        for row in self.rows:
            values = row.as_json()
            yield tuple(None if values[name] is None else str(values[name]) for name in COLUMNS)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Give the header and the rows for people, without columns that were not asked for."""
        now = datetime.now(UTC)
        sampled = bool(self.sample_s)
        aged = any(row.oldest for row in self.rows)
        moved = any(row.load.moved for row in self.rows)
        columns: list[tuple[str, Callable[[Shown], str]]] = [
            ("shard", lambda row: str(row.load.shard)),
            ("schema", lambda row: printable(row.load.schema)),
            ("node", lambda row: row.load.node),
            ("size", _size),
            ("rows", lambda row: picture.number(row.load.rows)),
        ]
        if sampled:
            columns += [
                ("writes/s", lambda row: _rate(row.load.writes_per_s)),
                ("scans/s", lambda row: _rate(row.load.scans_per_s)),
            ]
        if aged:
            columns.append(("oldest id", lambda row: _age(row, now)))
        if moved:
            columns.append(("last move", _move))
        return [name for name, _ in columns], [
            [cell(row) for _, cell in columns] for row in self.rows
        ]


COLUMNS = (
    "shard", "schema", "node", "size_bytes", "rows_estimate", "writes_per_s", "scans_per_s",
    "oldest_id", "oldest_time", "move", "moved",
)  # fmt: skip


def _size(row: Shown) -> str:
    return picture.size(row.load.bytes) if row.load.exists else "missing"


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:,.1f}"


def _age(row: Shown, now: datetime) -> str:
    return "-" if row.oldest is None else picture.duration(row.oldest.age_s(now))


def _move(row: Shown) -> str:
    load = row.load
    if load.moved is None:
        return "-"
    return f"{load.move}, {load.moved.astimezone(UTC):%Y-%m-%d %H:%M}"


def _time(moment: datetime | None) -> str | None:
    from shardctl.state.ledger import written

    return written(moment)


def _rounded(per_s: float | None) -> float | None:
    return None if per_s is None else round(per_s, 1)
