"""Whether a history keeps the promises; it knows nothing of shardctl but these.

In the manner of Jepsen's checkers: no clock of a server and no word of shardctl is believed, only
what clients were told, when they asked and when the answer came.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.chaos.history import Operation, Pause, Row


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept."""

    code: str
    what: str


@dataclass(frozen=True, slots=True)
class Ended:
    """What is there when all faults are over and all moves have ended."""

    rows: Sequence[Row]
    owners: Mapping[int, Sequence[str]]
    """The nodes that owned each shard, in their order; the last of them does."""


def check(operations: Iterable[Operation], ended: Ended) -> list[Violation]:
    """Judge a history by what is there at its end."""
    done = sorted(operations, key=lambda one: one.begin)
    tried = _tried(done)
    return [
        *_idle(done, ended.owners),
        *_rows(done, ended, tried),
        *_retired(ended),
        *_unique(done, ended),
        *_reads(done, tried),
        *_owners(done, ended.owners),
    ]


def _idle(
    operations: Sequence[Operation], owners: Mapping[int, Sequence[str]]
) -> Iterator[Violation]:
    """A run proves nothing if a client had no answer, or no shard has moved."""
    served = {one.client for one in operations if one.outcome == "acknowledged"}
    for name in sorted({one.client for one in operations} - served):
        yield Violation("idle", f"nothing was acknowledged to {name}")
    if not served:
        yield Violation("idle", "nothing was acknowledged")
    if not any(len(nodes) > 1 for nodes in owners.values()):
        yield Violation("idle", "no shard has moved")


def overlaps(one: Operation | Pause, windows: Iterable[tuple[float, float]]) -> bool:
    """Tell whether it fell, even in part, into one of the windows."""
    return any(begin <= one.end and one.begin <= end for begin, end in windows)


def pauses(
    found: Iterable[Pause], longest_s: float, windows: Sequence[tuple[float, float]]
) -> list[Violation]:
    """Find pauses that outlasted their guard: half of this without a fault."""
    return [
        Violation("paused", f"{one.pooler} for {one.end - one.begin:.1f} s at {one.begin:.1f}")
        for one in found
        if one.end - one.begin > (longest_s if overlaps(one, windows) else longest_s / 2)
    ]


def _rows(
    operations: Sequence[Operation], ended: Ended, tried: set[tuple[int, str, int]]
) -> Iterator[Violation]:
    """Each row is there once, on the owner, in the newest version acknowledged, or read."""
    there: defaultdict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in ended.rows:
        if row.live:
            there[row.shard, row.row].append(row)
    newest: Counter[tuple[int, str]] = Counter()
    for one in operations:
        if one.outcome == "acknowledged":
            newest[one.shard, one.row] = max(newest[one.shard, one.row], one.version)
    for (shard, name), version in newest.items():
        if version > max((row.version for row in there[shard, name]), default=0):
            yield Violation("lost", f"shard {shard}: version {version} of {name}")
    for (shard, name), rows in there.items():
        where = f"shard {shard}: {name} on {', '.join(row.node for row in rows)}"
        wrong = {
            "elsewhere": any(row.node != ended.owners[shard][-1] for row in rows),
            "twice": len(rows) > 1,
            "refused_but_written": any((shard, name, row.version) not in tried for row in rows),
            "torn": any(row.twins != (row.version,) * 3 for row in rows),
        }
        yield from (Violation(code, where) for code, found in wrong.items() if found)


def _tried(operations: Iterable[Operation]) -> set[tuple[int, str, int]]:
    """Give what was written, or may have been, as shard, name and version."""
    return {
        (one.shard, one.row, one.version)
        for one in operations
        if one.kind != "read" and one.outcome != "refused"
    }


def _retired(ended: Ended) -> Iterator[Violation]:
    """A retired copy has nothing that the owner lacks."""
    live = {(row.shard, row.row): row.version for row in ended.rows if row.live}
    for row in ended.rows:
        if not row.live and row.version > live.get((row.shard, row.row), 0):
            yield Violation("newer_retired", f"shard {row.shard}: {row.row} on {row.node}")


def _unique(operations: Sequence[Operation], ended: Ended) -> Iterator[Violation]:
    """Ids are unique in the fleet, serial numbers in their shard; rows keep theirs."""
    given = {(row.id, row.shard, row.serial, row.row) for row in ended.rows if row.live}
    for one in operations:
        if one.outcome == "acknowledged" and one.id is not None and one.serial is not None:
            given.add((one.id, one.shard, one.serial, one.row))
    ids = Counter(number for number, *_ in given)
    serials = Counter((shard, serial) for _, shard, serial, _ in given)
    yield from (Violation("id_twice", str(number)) for number, n in ids.items() if n > 1)
    names = Counter((shard, name) for _, shard, _, name in given)
    yield from (Violation("renumbered", f"shard {s}: {n}") for (s, n), k in names.items() if k > 1)
    yield from (
        Violation("serial_twice", f"shard {s}: {n}") for (s, n), k in serials.items() if k > 1
    )


def _reads(
    operations: Sequence[Operation], tried: set[tuple[int, str, int]]
) -> Iterator[Violation]:
    """Who reads finds what was acknowledged, or read, before it asked, or something newer."""
    known: defaultdict[tuple[int, str], list[tuple[float, int]]] = defaultdict(list)
    for one in operations:
        if one.outcome == "acknowledged":
            known[one.shard, one.row].append((one.end, one.version))
    for one in operations:
        if one.kind == "read" and one.outcome == "acknowledged":
            if one.version and (one.shard, one.row, one.version) not in tried:
                yield Violation(
                    "refused_but_read", f"shard {one.shard}: {one.version} of {one.row}"
                )
            seen = known[one.shard, one.row]
            least = max((version for end, version in seen if end < one.begin), default=0)
            if one.version < least:
                yield Violation(
                    "unseen",
                    f"shard {one.shard}: {one.client} read version {one.version} of {one.row} on "
                    f"{one.node} at {one.begin:.3f}, after version {least}",
                )


def _owners(
    operations: Sequence[Operation], owners: Mapping[int, Sequence[str]]
) -> Iterator[Violation]:
    """What a node acknowledges, it does while it owns the shard, and no other node does then.

    Each operation is put into the earliest of its node's times as the owner that is not before
    that of an operation which had ended before it began. Where there is none, two nodes have
    served the shard at once, or one that did not own it.
    """
    of_shard: defaultdict[int, list[Operation]] = defaultdict(list)
    for one in operations:
        if one.outcome == "acknowledged" and one.node is not None:
            of_shard[one.shard].append(one)
    for shard, served in of_shard.items():
        ends: list[tuple[float, int]] = []
        """When operations ended, and in which time, sorted by the end once they are passed."""
        reached = 0
        for one in served:  # in the order of their begins
            for ended, number in ends:
                if ended < one.begin:
                    reached = max(reached, number)
            ends = [(ended, number) for ended, number in ends if ended >= one.begin]
            times = [n for n, node in enumerate(owners[shard]) if node == one.node and n >= reached]
            if times:
                ends.append((one.end, times[0]))
            else:
                yield Violation(
                    "not_the_owner",
                    f"shard {shard}: {one.client} ({one.route}) was served {one.row} by {one.node} "
                    f"at {one.begin:.3f}, after {owners[shard][reached]} had served it",
                )
