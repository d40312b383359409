"""Whether to try again: the work of `run`, and what applications do on connections of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from psycopg import OperationalError, errors

from shardctl.router import fence, refusals
from shardctl.router.errors import CommitUnknown, NoConnection, ShardMoved
from shardctl.router.fence import Look
from shardctl.router.requests import Execute, Wait
from shardctl.topology.handles import NodeName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.router.known import Known
    from shardctl.router.leased import AsyncLeased, Leased
    from shardctl.router.requests import Plan
    from shardctl.topology.handles import ShardId

_CODES = frozenset(error.sqlstate for error in fence.IN_TRANSACTION)
_REFUSED = errors.ProtocolViolation.sqlstate


@dataclass(slots=True)
class Attempts:
    """The attempts of one `run`, which are tried again only where nothing can have been done."""

    known: Known
    shard: ShardId
    left: int
    again: bool = True
    """Whether a shard that is where it was may be tried again: once, as for a single statement."""
    pauses: Iterator[float] = field(default_factory=refusals.pauses)

    def after(self, error: BaseException, lease: Leased | AsyncLeased | None) -> Plan[bool]:
        """Return whether to try again, after what has to be waited for; raises ShardMoved."""
        self.left -= 1
        if lease is None:  # BEGIN itself got no answer
            lost = refusals.is_lost(error) and not _is_refusal(error)
        elif lease.restarted or _caused(error, _is_unknown):
            return False
        elif fence.met(error):
            return (yield from self._after_fence(error, lease.node))
        else:
            lost = lease.lost and _caused(error, refusals.is_lost)
        if not self.left or not lost:
            return False
        yield Wait(next(self.pauses))
        return True

    def _after_fence(self, error: BaseException, node: NodeName) -> Plan[bool]:
        found = yield from fence.look(self.known, node, [self.shard])
        if found is Look.AWAY:
            return False
        if found is Look.STANDS:
            again, self.again = self.again, False
            return again and self.left > 0
        if not self.left:
            raise ShardMoved(self.shard, node, self.known.owner(self.shard)) from error
        return True


def settle(known: Known, shard: ShardId, error: BaseException, node: str | None) -> Plan[bool]:
    """Return whether an error of any driver was the fence, and what it fenced is served again.

    `node` is where the error came from; None is the node that the map names.
    """
    if _caused(error, _is_refusal):
        try:
            yield from refusals.execute(known, Execute(known.owner(shard), b"SELECT"))
        except (OperationalError, NoConnection):
            return False
        return True
    if not _caused(error, lambda one: _code(one) in _CODES):
        return False
    known.require_node(node)
    at = known.owner(shard) if node is None else NodeName(node)
    found = yield from fence.look(known, at, [shard])
    if found is Look.STANDS:
        # It may have moved, or come back, since: another call has read the map in between.
        return known.was_unsettled(shard)
    return found is Look.SETTLED


def _caused(error: BaseException | None, wanted: Callable[[Any], bool]) -> bool:
    """Return whether an error, or a cause of it, is wanted."""
    while error is not None:
        if wanted(error):
            return True
        if isinstance(error, BaseExceptionGroup):
            return any(_caused(one, wanted) for one in error.exceptions)
        error = error.__cause__ or getattr(error, "orig", None)  # SQLAlchemy has it there, too
    return False


def _is_unknown(error: BaseException) -> bool:
    return isinstance(error, CommitUnknown)


def _is_refusal(error: BaseException) -> bool:
    return _code(error) == _REFUSED and refusals.has_text(str(error))


def _code(error: BaseException) -> str | None:
    """Give an error's SQLSTATE: as psycopg and asyncpg name it, psycopg2, or pg8000."""
    for name in ("sqlstate", "pgcode"):
        if isinstance(code := getattr(error, name, None), str):
            return code
    if error.args and isinstance(error.args[0], dict):
        return error.args[0].get("C")
    return None
