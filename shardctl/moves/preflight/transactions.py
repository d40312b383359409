"""Transactions for which the cutover would wait: old ones that write, or hold a pooler's pause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.moves.preflight import poolers
from shardctl.moves.preflight.subject import QUERIES
from shardctl.moves.refusals import SourceUnfit, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that is older than the cutover may take; `seconds` is its age.

    `writes` when it holds or awaits a lock on a moved table that a write takes, `reads` when
    it has any lock there.
    """

    pid: int
    who: str
    seconds: float
    writes: bool
    reads: bool

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.who}, for {self.seconds:.0f} s)"


def look(context: Context) -> tuple[Transaction, ...]:
    """Ask the source for transactions that are older than the cutover may take."""
    older = {"schemas": list(context.plan.schemas), "seconds": context.plan.options.max_pause_s}
    found = context.session.execute(QUERIES["transactions"], older)
    return tuple(Transaction(*one) for one in found)


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse those that the drain would wait for, and those that came through a pooler."""
    busy = frozenset().union(*(one.busy for one in context.of(poolers.look) or ()))
    found = [one for one in context.need(look) if one.writes or one.pid in busy]
    if found:
        pause_s = context.plan.options.max_pause_s
        yield SourceUnfit(
            context.plan.source,
            "old_transactions",
            f"transactions on the moved shards are older than --max-pause ({pause_s:g} s): "
            f"{listed([str(one) for one in found])}",
            hint="wait until they have ended, or end them: a cutover would wait for such ones in "
            "vain",
        )


def notes(context: Context) -> Iterator[str]:
    """Say which old transactions do not matter."""
    readers = [str(one) for one in context.need(look) if one.reads and not one.writes]
    if readers:
        yield f"transactions that only read moved shards, and are not waited for: {listed(readers)}"
