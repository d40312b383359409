"""What somebody left behind on a node, and what it holds up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING

from shardctl.checks.check import Check
from shardctl.checks.findings import Finding, Severity
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shardctl.checks.check import Place, View
    from shardctl.topology.model import NodeName

NAME = "leftovers"
QUERIES = queries.load("shardctl.checks", "leftovers.sql")

IDLE_S = 300
"""How long a session may be idle in a transaction."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that nobody uses; `held_bytes` of WAL are kept for it, None where none ever was."""

    name: str
    kind: str
    held_bytes: int | None


@dataclass(frozen=True, slots=True)
class Session:
    """A session that is idle in a transaction."""

    pid: int
    application: str
    idle_s: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What one node has; `prepared` are ages in seconds by global identifier."""

    slots: tuple[Slot, ...]
    prepared: Mapping[str, int]
    sessions: tuple[Session, ...]


def look(place: Place) -> Seen:
    """Ask for slots, prepared transactions and idle sessions."""
    ask = place.connection.execute
    return Seen(
        slots=tuple(Slot(*row) for row in ask(QUERIES["slots"])),
        prepared=dict(ask(QUERIES["prepared"]).fetchall()),
        sessions=tuple(Session(*row) for row in ask(QUERIES["idle"], {"seconds": IDLE_S})),
    )


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Find what is left, node by node; idle sessions by application."""
    for node, seen in view.seen.items():
        for slot in seen.slots:
            held = "no WAL" if slot.held_bytes is None else f"{slot.held_bytes} bytes of WAL"
            yield Finding(
                NAME,
                "slot_inactive",
                Severity.warning,
                actual=f"{slot.kind} slot, inactive, holds back {held}",
                expected="a replica that uses it, or no slot",
                hint="where nobody will: `SELECT pg_drop_replication_slot('NAME')` on that node",
                node=node,
                object=slot.name,
            )
        for gid, age_s in seen.prepared.items():
            yield Finding(
                NAME,
                "prepared_transaction",
                Severity.warning,
                actual=f"prepared for {_time(age_s)}",
                expected="no prepared transaction: it holds locks, and prevents moves",
                hint="`COMMIT PREPARED 'GID'` or `ROLLBACK PREPARED 'GID'` in that database",
                node=node,
                object=gid,
            )
        yield from _idle(node, seen.sessions)


def _idle(node: NodeName, sessions: Iterable[Session]) -> Iterator[Finding]:
    ordered = sorted(sessions, key=lambda session: (session.application, -session.idle_s))
    for application, group in groupby(ordered, key=lambda session: session.application):
        longest, *others = group
        more = f", and {len(others)} more for less" if others else ""
        yield Finding(
            NAME,
            "idle_in_transaction",
            Severity.warning,
            actual=f"pid {longest.pid} idle in transaction for {_time(longest.idle_s)}{more}",
            expected=f"less than {_time(IDLE_S)}: it holds locks, and back VACUUM and moves",
            hint="mend the application; to end one: `SELECT pg_terminate_backend(PID)` there",
            node=node,
            object=application or None,
        )


def _time(seconds: int) -> str:
    """Write a span for people.

    >>> _time(400), _time(90_061)
    ('0:06:40', '1 day, 1:01:01')
    """
    return str(timedelta(seconds=max(seconds, 0)))


CHECK = Check(NAME, "no unused slots, prepared transactions, forgotten sessions", judge, look)
