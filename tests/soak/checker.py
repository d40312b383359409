"""Judges a history, in the manner of Jepsen: what has broken one of shardctl's promises.

Pure functions, which use nothing of shardctl. An operation whose outcome is unknown may have been
done or not, but not twice, and not in two places.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.soak.history import Copy, Era, History, Op, Pause, Row

SHOWN = 5
"""How many examples of one rule the page has."""


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong, by the name of the rule."""

    rule: str
    text: str


def check(history: History) -> list[Violation]:
    """Give all that is wrong, in the order of the rules."""
    return [Violation(name, text) for name, rule in RULES.items() for text in rule(history)]


def missing(history: History) -> Iterator[str]:
    """Find acknowledged writes that are not on their shard's owner, or older than acknowledged."""
    live = _live(history)
    owners = history.owners()
    wanted: dict[int, int] = {}
    shards: dict[int, int] = {}
    for op in _acknowledged(history, "write", "change"):
        wanted[op.token] = max(wanted.get(op.token, 0), op.version)
        shards[op.token] = op.shard
    found = {
        shard: {row.token: row.version for row in copy.rows}
        for (node, shard), copy in live.items()
        if owners.get(shard) == node
    }
    for shard in sorted(owners.keys() - found.keys()):
        yield f"shard {shard} is not live on its owner {owners[shard]}"
    for token, version in wanted.items():
        shard = shards[token]
        if (rows := found.get(shard)) is None:
            continue
        if token not in rows:
            yield f"shard {shard}: acknowledged row {token} is missing on node {owners[shard]}"
        elif rows[token] < version:
            yield f"shard {shard}: row {token} has version {rows[token]}, acknowledged {version}"


def twice(history: History) -> Iterator[str]:
    """Find rows that are there twice, or that were never sent, or refused."""
    sent = {op.token: op for op in history.ops if op.kind == "write"}
    newest: dict[int, int] = defaultdict(int)
    for op in history.ops:
        if op.kind == "change" and op.outcome != "refused":
            newest[op.token] = max(newest[op.token], op.version)
    met: dict[int, str] = {}
    for copy in _live(history).values():
        for row in copy.rows:
            here = f"{copy.schema} on node {copy.node}"
            if row.token in met:
                yield f"row {row.token} is in {met[row.token]} and in {here}"
            elif wrong := _other_than_sent(row, copy, sent.get(row.token), newest[row.token]):
                yield f"row {row.token} in {here} {wrong}"
            met.setdefault(row.token, here)


def elsewhere(history: History) -> Iterator[str]:
    """Find writes that a node acknowledged which did not own the shard, and second live copies.

    A node owns a shard in its eras, whose limits are known within bounds. Within these the order
    decides: what the earlier owner acknowledged was sent before the later one had answered.
    """
    owners = history.owners()
    for node, shard in _live(history):
        if owners.get(shard) != node:
            yield f"shard {shard} is live on node {node}, its owner is {owners.get(shard)}"
    by_shard = _by_shard(_acknowledged(history, "write", "change"))
    for shard, eras in _eras(history).items():
        placed: list[list[Op]] = [[] for _ in eras]
        for op in by_shard.get(shard, ()):
            fits = _fits(op, eras)
            if op.node and not fits:
                yield f"shard {shard}: node {op.node} acknowledged row {op.token} and was not owner"
            elif len(fits) == 1:
                placed[fits[0]].append(op)
        for number, (old, new) in enumerate(itertools.pairwise(placed), 1):
            last = max(old, key=lambda op: op.begin, default=None)
            first = min(new, key=lambda op: op.end, default=None)
            if last and first and last.begin > first.end:
                yield (
                    f"shard {shard}: node {last.node} acknowledged row {last.token}, sent after"
                    f" node {eras[number].node} had acknowledged row {first.token}"
                )
    yield from _rows_elsewhere(history)


def retired(history: History) -> Iterator[str]:
    """Find rows in retired copies that are newer than their fence, or that their owner lacks."""
    owned = _owned(history)
    sent = {op.token: op for op in history.ops if op.kind == "write"}
    for copy in history.copies:
        if not copy.retired:
            continue
        live = owned.get(copy.shard, {})
        for row in copy.rows:
            here = f"{copy.schema} on node {copy.node}"
            if row.token not in live or live[row.token].version < row.version:
                yield f"{here} has row {row.token}, version {row.version}, which its owner lacks"
            elif (op := sent.get(row.token)) is not None and op.begin > copy.closed:
                yield f"{here} has row {row.token}, which was sent behind its fence"


def vanished(history: History) -> Iterator[str]:
    """Find reads that missed what had been acknowledged, or read, before they began."""
    eras = _eras(history)
    known: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for op in _acknowledged(history, "write", "change"):
        known[op.token].append((op.end, op.version))
    for op in _acknowledged(history, "read"):
        for token, version in op.seen:
            known[token].append((op.end, version))
    for events in known.values():
        events.sort()
        highest = itertools.accumulate((version for _, version in events), max)
        events[:] = [(end, version) for (end, _), version in zip(events, highest, strict=True)]
    for op in _acknowledged(history, "read"):
        if _may_be_stale(op, eras.get(op.shard, [])):
            continue
        seen = dict(op.seen)
        for token in op.asked:
            events = known.get(token, [])
            place = bisect_right(events, op.begin, key=lambda event: event[0])
            if place and seen.get(token, -1) < (version := events[place - 1][1]):
                met = f"version {seen[token]}" if token in seen else "nothing"
                where = f" on node {op.node}" if op.node else ""
                yield (
                    f"shard {op.shard}: {op.client} read {met} of row {token}{where}, "
                    f"version {version} had been there before"
                )


def ids(history: History) -> Iterator[str]:
    """Find ids that two rows of the fleet have, or that were given out twice."""
    rows: dict[int, tuple[int, str]] = {}
    for copy in _live(history).values():
        for row in copy.rows:
            here = f"row {row.token} of {copy.schema} on node {copy.node}"
            if row.id in rows and rows[row.id][0] != row.token:
                yield f"id {row.id}: {rows[row.id][1]}, {here}"
            rows[row.id] = (row.token, here)
    given: dict[int, int] = {}
    for op in _acknowledged(history, "write"):
        if given.setdefault(op.id, op.token) != op.token:
            yield f"id {op.id} was given to rows {given[op.id]} and {op.token}"
        elif op.id in rows and rows[op.id][0] != op.token:
            yield f"id {op.id} was given to row {op.token}, and is that of {rows[op.id][1]}"


def paused(history: History) -> Iterator[str]:
    """Find poolers that stayed paused for longer than their guards wait."""
    for pause in history.pauses:
        lasted = pause.end - pause.begin - _excused(history, pause)
        if lasted > history.pause_limit_s:
            yield f"pooler {pause.pooler}: {pause.alias} was paused for {lasted:.1f} s"


def unfinished(history: History) -> Iterator[str]:
    """Find moves that neither one resume nor one abort has ended."""
    by_move: dict[str, list[bool]] = defaultdict(list)
    verbs: dict[str, list[str]] = defaultdict(list)
    for attempt in sorted(history.attempts, key=lambda attempt: attempt.at):
        by_move[attempt.move].append(attempt.over)
        verbs[attempt.move].append(f"{attempt.verb} ({attempt.code})")
    for move in sorted(by_move.keys() | history.open_moves):
        tried = verbs[move]
        if not any(by_move[move]):
            yield f"move {move} is not over; tried: {', '.join(tried) or 'nothing'}"
        elif len({verb.split(maxsplit=1)[0] for verb in tried}) < len(tried):
            yield f"move {move} was over only after: {', '.join(tried)}"


def left(history: History) -> Iterator[str]:
    """Find what no open move owns, and nodes that disagree about who owns what."""
    for one in history.left:
        if one.move not in history.open_moves:
            yield f"{one.where}: {one.kind} {one.name} is left"
    owners = history.owners()
    for node, owned in history.maps.items():
        for shard in sorted(owned.keys() | owners.keys()):
            if owned.get(shard) != owners.get(shard):
                yield (
                    f"the map of node {node} gives shard {shard} to {owned.get(shard)}, "
                    f"its owner is {owners.get(shard)}"
                )


RULES: dict[str, Callable[[History], Iterable[str]]] = {
    "acknowledged write missing": missing,
    "row twice": twice,
    "acknowledged by another than the owner": elsewhere,
    "retired copy newer than its fence": retired,
    "row went away from a reader": vanished,
    "id given twice": ids,
    "paused longer than the guard": paused,
    "move not ended by one command": unfinished,
    "left behind": left,
    "command ended wrongly": lambda history: history.wrong,
}
"""What shardctl promises, by the name that the page has for its violation."""


def _acknowledged(history: History, *kinds: str) -> Iterator[Op]:
    return (op for op in history.ops if op.outcome == "acknowledged" and op.kind in kinds)


def _live(history: History) -> dict[tuple[str, int], Copy]:
    return {(copy.node, copy.shard): copy for copy in history.copies if not copy.retired}


def _owned(history: History) -> dict[int, dict[int, Row]]:
    """Give the rows of each shard on its owner, by their tokens."""
    owners = history.owners()
    return {
        shard: {row.token: row for row in copy.rows}
        for (node, shard), copy in _live(history).items()
        if owners.get(shard) == node
    }


def _by_shard(ops: Iterable[Op]) -> dict[int, list[Op]]:
    found: dict[int, list[Op]] = defaultdict(list)
    for op in ops:
        found[op.shard].append(op)
    return found


def _eras(history: History) -> dict[int, list[Era]]:
    found: dict[int, list[Era]] = defaultdict(list)
    for era in history.eras:
        found[era.shard].append(era)
    return found


def _fits(op: Op, eras: list[Era]) -> list[int]:
    """Give the numbers of the eras of the operation's node in which it can have been committed."""
    ends = [*(era.before for era in eras[1:]), math.inf]
    return [
        number
        for number, (era, end) in enumerate(zip(eras, ends, strict=True))
        if era.node == op.node and op.end > era.after and op.begin <= end
    ]


def _other_than_sent(row: Row, copy: Copy, op: Op | None, newest: int) -> str:
    """Give what is wrong with a row, or '' if it is as it was sent."""
    if op is None:
        return "was never written"
    if op.outcome == "refused":
        return f"was refused: {op.code}"
    if op.shard != copy.shard:
        return f"is of shard {op.shard}"
    if op.outcome == "acknowledged" and op.id != row.id:
        return f"has id {row.id}, acknowledged {op.id}"
    if row.version > newest:
        return f"has version {row.version}, which was never sent"
    return ""


def _rows_elsewhere(history: History) -> Iterator[str]:
    """Find rows of unknown outcome that a node executed which was not the owner."""
    eras = _eras(history)
    unknown = {op.token: op for op in history.ops if op.kind == "write" and op.outcome == "unknown"}
    for copy in _live(history).values():
        for row in copy.rows:
            if not row.node or (op := unknown.get(row.token)) is None:
                continue
            if not _fits(replace(op, node=row.node, end=math.inf), eras.get(copy.shard, [])):
                yield f"{copy.schema}: node {row.node} executed row {row.token} and was not owner"


def _may_be_stale(op: Op, eras: list[Era]) -> bool:
    """Tell whether the earlier owner may have answered, while a move refused only writes."""
    return any(
        op.node in {"", old.node} and op.end > new.after and op.begin <= new.stale_until
        for old, new in itertools.pairwise(eras)
    )


def _excused(history: History, pause: Pause) -> float:
    """Give the seconds of a pause in which a fault held the pooler or its guards."""
    return sum(
        max(0.0, min(one.end, pause.end) - max(one.begin, pause.begin))
        for one in history.outages
        if one.what in {"pooler", "guard"} and one.name == pause.pooler
    )
