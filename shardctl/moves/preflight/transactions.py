"""Old transactions that the cutover would wait for: they write, or hold up a pooler's PAUSE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.meter import listed
from shardctl.moves.preflight import poolers
from shardctl.moves.preflight.subject import QUERIES
from shardctl.moves.refusals import SourceUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that is older than the cutover may take; `seconds` is its age.

    `writes`: it holds or awaits a write lock on a moved table; `reads`: it has any lock there.
    """

    pid: int
    who: str
    seconds: float
    writes: bool
    reads: bool

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.who}, {self.seconds:.0f} s old)"


def look(context: Context) -> tuple[Transaction, ...]:
    """List the source's transactions that are older than --max-pause."""
    older = {"schemas": list(context.plan.schemas), "seconds": context.plan.options.max_pause_s}
    found = context.session.execute(QUERIES["transactions"], older)
    return tuple(Transaction(*one) for one in found)


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse transactions that the cutover would wait for."""
    busy = frozenset().union(*(one.busy for one in context.of(poolers.look) or ()))
    found = [one for one in context.need(look) if one.writes or one.pid in busy]
    if found:
        pause_s = context.plan.options.max_pause_s
        yield SourceUnfit(
            context.plan.source,
            "old_transactions",
            f"transactions on the moved shards are older than --max-pause ({pause_s:g} s), so the "
            f"cutover would time out: {listed([str(one) for one in found])}",
            hint="wait until they end, or end them with pg_terminate_backend(PID) there",
        )


def notes(context: Context) -> Iterator[str]:
    """Report old transactions that the cutover does not wait for."""
    readers = [str(one) for one in context.need(look) if one.reads and not one.writes]
    if readers:
        yield f"the cutover does not wait for transactions that only read: {listed(readers)}"
