"""What the router reports of each statement: to the application's hook, and to the log."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from shardctl.topology.handles import NodeName, ShardId

LOG = logging.getLogger("shardctl.router")


@dataclass(frozen=True, slots=True)
class StatementEvent:
    """One statement of the application's, or one transaction, when it has ended."""

    call: str
    """The method: `select`, `insert`, `fetch_many`, `scatter`, `shard`, `run` and so on."""
    table: str | None
    """None for transactions, whose statements are the application's own."""
    shards: tuple[ShardId, ...]
    node: NodeName | None
    """The last node that it was sent to; None if there was none."""
    milliseconds: float
    """From the call to the answer, with all waiting; of a `scatter` to its first rows."""
    repeats: int
    """How many times it was sent again: after the fence, a lost connection or a refusal."""
    error: BaseException | None
    """What the application gets; None if it succeeded."""

    @property
    def shard(self) -> ShardId | None:
        """The shard, if there is exactly one."""
        return self.shards[0] if len(self.shards) == 1 else None


class Span:
    """The time of one statement: a `with` around it reports it at its end."""

    __slots__ = ("_began", "_call", "_hook", "_shards", "_table", "error", "node", "repeats")

    def __init__(
        self,
        hook: Callable[[StatementEvent], object] | None,
        call: str,
        table: str | None,
        shards: Sequence[ShardId],
    ) -> None:
        self._hook = hook
        self._call = call
        self._table = table
        self._shards = shards
        self._began = time.perf_counter()
        self.node: NodeName | None = None
        self.repeats = 0
        self.error: BaseException | None = None
        """Of a plan that returns an error and does not raise it."""

    def count(self) -> None:
        """Note that it is sent again."""
        self.repeats += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if self._hook is None and not LOG.isEnabledFor(logging.DEBUG):
            return
        took_ms = (time.perf_counter() - self._began) * 1000
        event = StatementEvent(
            self._call,
            self._table,
            tuple(self._shards),
            self.node,
            took_ms,
            self.repeats,
            error or self.error,
        )
        _log(event)
        if self._hook is not None:
            _call(self._hook, event)


def _call(hook: Callable[[StatementEvent], object], event: StatementEvent) -> None:
    """Call the hook; an error of its own is logged, because the statement has its result."""
    try:
        hook(event)
    except Exception:
        LOG.exception("on_statement raised an error, which changes nothing for the statement")


def _log(event: StatementEvent) -> None:
    """Log a statement without its values."""
    LOG.debug(
        "%s %s on node %s, shards %s: %.1f ms, repeated %d times, %s",
        event.call,
        event.table or "transaction",
        event.node,
        ",".join(map(str, event.shards[:8])) + (",..." if len(event.shards) > 8 else ""),
        event.milliseconds,
        event.repeats,
        "done" if event.error is None else type(event.error).__name__,
    )
