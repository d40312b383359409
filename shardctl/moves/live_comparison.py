"""Compare the moved tables on source and target, row for row, in the snapshots of one moment.

What is proved is said for each table: at the moment of its proof the target had the rows that the
source had. A comparison that was interrupted goes on with the tables that are left, at a later
moment; those that were equal keep their result, with its time.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from shardctl.errors import Interrupted
from shardctl.meter import BYTES, SHOWN
from shardctl.moves import comparison, differing_keys
from shardctl.moves.confirm_sessions import Sessions
from shardctl.moves.preflight import wal
from shardctl.moves.rehearsed import Equal
from shardctl.postgres.logical.copying import Throttle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.fanout import Progress
    from shardctl.moves.comparison import Sum, Table
    from shardctl.moves.context import MoveContext
    from shardctl.moves.rehearsed import Results
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.logical.moment import Moment
    from shardctl.topology.model import NodeName

BLOCKS = 8192
"""Blocks that one statement sums up, 64 MB: so progress is seen, and a rate is kept."""
_LEAST_BLOCKS = 128
_BLOCK = 8192


def compare(
    context: MoveContext,
    moment: Moment,
    results: Results,
    shown: Progress,
    stop: threading.Event,
) -> list[str]:
    """Compare the tables that have no result; return those that differ, in words.

    Sums of equal tables go into `results`. Raises SnapshotLost, Interrupted, NodeLost.
    """
    plan = context.plan
    sessions = Sessions(context, {plan.source: moment.source, plan.target: moment.target}, stop)
    with comparison.opened(sessions) as asked:
        named = dict.fromkeys(asked, plan.schemas)
        found = comparison.tables(sessions, asked, named, plan.schemas)
        if absent := comparison.unlike(plan, found):
            return absent
        tables = [one for one in found[plan.source] if str(one) not in results.equal]
        return _Comparing(sessions, asked, results, shown, moment).of(tables)


class _Comparing:
    """Sums up tables on both nodes at the same time, and keeps what was equal."""

    def __init__(
        self,
        sessions: Sessions,
        asked: comparison.Asked,
        results: Results,
        shown: Progress,
        moment: Moment,
    ) -> None:
        self._sessions, self._asked, self._results = sessions, asked, results
        self._shown, self._moment = shown, moment
        self._plan = sessions.context.plan
        rate = self._plan.options.max_rate
        self._rate = wal.rate(rate) if rate else None
        self._blocks = BLOCKS
        if self._rate is not None:
            self._blocks = min(BLOCKS, max(_LEAST_BLOCKS, self._rate // _BLOCK))
        self._lock = threading.Lock()
        self._half: dict[Table, Sum] = {}

    def of(self, tables: Sequence[Table]) -> list[str]:
        total = sum(table.blocks for table in tables) * _BLOCK
        throttles = {}
        for node in self._asked:
            self._shown.expect(node, "comparing", total, BYTES)
            throttles[node] = Throttle(self._rate, self._sessions.stop)

        def one(node: NodeName, session: Connection, table: Table) -> Sum:
            def passed(blocks: int) -> None:
                self._shown.advance(node, blocks * _BLOCK)
                throttles[node].passed(blocks * _BLOCK)

            try:
                found = comparison.sum_up(
                    self._sessions, node, session, table, blocks=self._blocks, passed=passed
                )
                self._keep(table, found)
            except BaseException:
                self._sessions.stop.set()  # the other node need not go on
                raise
            return found

        try:
            sums = comparison.on_both(self._sessions, self._asked, one, tables)
        finally:
            self._results.flush()
        if self._sessions.stop.is_set():
            raise Interrupted("stopped while the copies were compared")
        both = zip(tables, sums[self._plan.source], sums[self._plan.target], strict=True)
        return self._described(
            [(table, here.rows, there.rows) for table, here, there in both if here != there]
        )

    def _keep(self, table: Table, found: Sum) -> None:
        """Keep the result of a table that was equal, when both nodes have answered."""
        with self._lock:
            other = self._half.setdefault(table, found)
            if other is not found and other == found:
                equal = Equal(found.rows, table.blocks * _BLOCK, self._moment.at)
                self._results.add(str(table), equal)

    def _described(self, differing: Sequence[tuple[Table, int, int]]) -> list[str]:
        """Describe tables that differ, given their numbers of rows on source and target."""
        described: list[str] = []
        for table, here, there in differing:
            text = f"{table}: {here:,} rows on {self._plan.source}, {there:,} on "
            text += self._plan.target
            if len(described) < SHOWN:
                keys = differing_keys.described(self._sessions, self._asked, table, here)
                text += f" ({keys})" if keys else ""
            described.append(text)
        return described
