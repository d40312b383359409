"""The WAL that a source keeps for a move: how much it has room for, the limit, and reaching it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError, together
from shardctl.hosts import accounts
from shardctl.hosts.reach import host_of
from shardctl.moves.refusals import SourceUnfit
from shardctl.postgres import queries
from shardctl.state import journal, leash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection
    from shardctl.state.journal import Move
    from shardctl.topology.model import Node

QUERIES = queries.load("shardctl.moves", "wal.sql")

SHARE = 10
"""A move may hold back one part in so many of the free disk, unless `max_wal` says more or less."""
_SECONDS = 30.0
_KB = 1024
_MB = 1024 * _KB
_ENDED_S = 10.0
_POLL_S = 0.02


class WalLimitReached(ShardctlError):
    """A move whose slot held back more WAL than the source keeps for it; it was aborted."""

    def __init__(self, node: str, move: str, told: dict[str, int]) -> None:
        held, limit = told["held_bytes"], told["limit_bytes"]
        super().__init__(
            f"node {node}: move {move} held back {megabytes(held)} of WAL, and its limit is "
            f"{megabytes(limit)}: node {node} dropped its slot, and shardctl aborts the move",
            hint="see why the clone did not keep up (its disk, the network), or give --max-wal "
            "more; then begin the move again",
        )
        self.held_bytes = held
        self.limit_bytes = limit


@dataclass(frozen=True, slots=True)
class Wal:
    """What a source has of WAL, and room for more.

    `free_bytes` are of the disk of its WAL, None where its host did not tell; `unknown` is why.
    `rate` is what it wrote in the last minutes, in bytes a second; `keep_bytes` its
    `max_slot_wal_keep_size`, None for no limit.
    """

    free_bytes: int | None
    unknown: str
    rate: float
    keep_bytes: int | None

    def limit(self, plan: MovePlan) -> int | None:
        """Give what the move may hold back, in bytes; None where that cannot be told."""
        if plan.options.max_wal_bytes is not None or self.free_bytes is None:
            return plan.options.max_wal_bytes
        return self.free_bytes // SHARE


def megabytes(count: float) -> str:
    """Write bytes for people.

    >>> megabytes(64 << 20), megabytes(20 << 30), megabytes(1000)
    ('64 MB', '20,480 MB', '1 MB')
    """
    return f"{max(1, round(count / _MB)):,} MB"


def look(node: Node, session: Connection) -> Wal:
    """Ask a source and its host; `session` is with the source, a primary."""
    row = session.execute(QUERIES["source"]).fetchone()
    if row is None:  # pragma: no cover  # a SELECT without FROM gives one row
        raise AssertionError
    directory, rate, keep_mb = row
    free, unknown = free_bytes(node, directory)
    return Wal(free, unknown, rate, None if keep_mb < 0 else keep_mb * _MB)


def judge(plan: MovePlan, wal: Wal, copy_s: float) -> Iterator[SourceUnfit]:
    """Find a source that lacks the room for the WAL of a copy that takes so many seconds."""
    node, limit, free = plan.source, wal.limit(plan), wal.free_bytes
    expected = wal.rate * copy_s
    about = (
        f"it writes about {megabytes(wal.rate * 60)} of WAL a minute, "
        f"{megabytes(expected)} while it is copied"
    )
    if limit is None:
        yield SourceUnfit(
            node,
            "wal_room_unknown",
            f"how much room its disk has for WAL could not be measured: {wal.unknown}",
            hint="give --max-wal, or max_wal under `move:` in the topology: the most WAL that it "
            "may keep for the move, such as 20GB",
        )
    elif free is not None and limit > free:
        yield SourceUnfit(
            node,
            "wal_room",
            f"it may keep {megabytes(limit)} of WAL for the move (max_wal), and its disk has "
            f"{megabytes(free)} free",
            hint="make room there, or give --max-wal less",
        )
    elif plan.options.max_wal_bytes is None and expected > limit:
        yield SourceUnfit(
            node,
            "wal_room",
            f"{about}, and may keep {megabytes(limit)} for the move: a tenth of its free disk",
            hint="make room there, move when less is written, or give --max-wal: the clone "
            "receives WAL while it is copied, and the move aborts itself where more is left over",
        )
    if wal.keep_bytes is not None and expected > wal.keep_bytes:
        yield SourceUnfit(
            node,
            "wal_keep_size",
            f"{about}, and max_slot_wal_keep_size lets a slot keep {megabytes(wal.keep_bytes)}",
            hint="`ALTER SYSTEM SET max_slot_wal_keep_size` to more and reload, or move when less "
            "is written",
        )


def notes(plan: MovePlan, wal: Wal) -> Iterator[str]:
    """Say what bounds the WAL that the source keeps."""
    limit = wal.limit(plan)
    if limit is not None:
        yield (
            f"node {plan.source} keeps at most {megabytes(limit)} of WAL for the move, and writes "
            f"about {megabytes(wal.rate * 60)} a minute: past that limit the move aborts itself"
        )
    if wal.keep_bytes is not None:
        yield (
            f"node {plan.source} keeps no more than max_slot_wal_keep_size = "
            f"{megabytes(wal.keep_bytes)} of WAL for the clone: if that falls further behind, it "
            "has to be made again"
        )


def settled(plan: MovePlan, node: Node, session: Connection) -> MovePlan:
    """Give the plan with its limit in bytes, which the journal keeps; `session` is with the source.

    Raises SourceUnfit where the room is not known and no limit is given.
    """
    if plan.options.max_wal_bytes is not None:
        return plan
    wal = look(node, session)
    held = session.execute(QUERIES["held"], {"slot": plan.slot}).fetchone()
    for problem in judge(plan, replace(wal, rate=0.0), 0.0):
        raise problem
    # What a slot of an older shardctl holds back was free before.
    free = (wal.free_bytes or 0) + (held[0] if held else 0)
    return replace(plan, options=replace(plan.options, max_wal_bytes=free // SHARE))


def exceeding(session: Connection, plan: MovePlan) -> int | None:
    """Give the bytes that the move's slot holds back if they are above its limit; else None."""
    row = session.execute(QUERIES["held"], {"slot": plan.slot}).fetchone()
    limit = plan.options.max_wal_bytes
    held = row[0] if row else None
    return held if held is not None and limit is not None and held > limit else None


def forget(session: Connection, move: Move) -> None:
    """Take from the journal that the limit was exceeded: the copy is made again."""
    rest = {name: value for name, value in (move.report or {}).items() if name != journal.WAL_LIMIT}
    journal.note(session, move, report=rest)


@contextmanager
def aborting(context: MoveContext, abort: Callable[[], None]) -> Iterator[None]:
    """Abort the move where an error within comes of its limit of WAL; raises WalLimitReached."""
    try:
        yield
    except ShardctlError as error:
        told = _told(context)
        if told is None:
            raise
        limit = WalLimitReached(context.plan.source, context.plan.id, told)
        try:
            abort()
        except ShardctlError as again:
            raise together([limit, *again.parts()]) from error
        raise limit from error


def _told(context: MoveContext) -> dict[str, int] | None:
    """Ask the source whether its leash has dropped the slot, once that has written so."""
    source, slot = context.plan.source, context.plan.slot
    try:
        with context.on(source):
            session = context.session(source)
            found = session.execute(QUERIES["held"], {"slot": slot}).fetchone()
            deadline = time.monotonic() + _ENDED_S
            while found is None and leash.is_armed(session, slot) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            move = journal.find(session, context.plan.id)
            return None if move is None else journal.wal_limit(move)
    except ShardctlError:  # a source that is not there has been told by what failed
        return None


def free_bytes(node: Node, directory: str | None) -> tuple[int | None, str]:
    """Ask the host for the free room of the disk with the WAL, in bytes; or say why not."""
    if directory is None:
        return None, "the server does not name its data directory"
    try:
        host = host_of(node)
        account = accounts.account_on(host, node.os_user)
        argv = ["df", "-P", "-k", "--", f"{directory}/pg_wal/."]  # it may be a link
        lines = host.run(argv, user=account, timeout=_SECONDS).stdout.splitlines()
        return int(lines[-1].split()[3]) * _KB, ""
    except (IndexError, ValueError):
        return None, "df does not tell"
    except ShardctlError as error:
        return None, error.message
