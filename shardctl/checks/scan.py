"""Every row of a node's tables, step by step: so a rate and the time left are known."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from psycopg import sql

from shardctl.checks.check import QUERIES
from shardctl.ids.layout import Layout
from shardctl.postgres import catalog, queries

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shardctl.fanout import Progress
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, Topology

STEP_S = 0.5
"""How long the server should read before it answers: so a rate is true, and answers are few."""
ROWS = 10_000
"""Rows of the first step."""

Relation = tuple[str, str]
"""A schema and a table in it."""


class Scan:
    """Reads tables one after the other over `session`, which is in autocommit.

    Each is read in one snapshot, which holds back VACUUM until then.
    """

    def __init__(
        self,
        session: Connection,
        node: NodeName,
        phase: str,
        tables: Collection[Relation],
        progress: Progress,
    ) -> None:
        self._session, self._node, self._progress = session, node, progress
        session.execute("SET default_transaction_isolation TO 'repeatable read'")
        session.execute("SET synchronize_seqscans TO off")  # blocks come in their order
        given = {"schemas": [one for one, _ in tables], "names": [name for _, name in tables]}
        found = session.execute(QUERIES["blocks"], given)
        self._blocks = {(schema, name): blocks for schema, name, blocks in found}
        self._of = sum(self._blocks.values())
        self._rows = self._read = 0
        self._step = ROWS
        progress.expect(node, phase, 0, "rows")

    def read(
        self, table: Relation, odd: sql.Composable, ask: Callable[[sql.Composable], None]
    ) -> None:
        """Read a table, and let `ask` look again at each step that has rows for which `odd` holds.

        It gets the step's condition for a table `t`. A table that is read no further, since it is
        locked or gone, counts as read.

        """
        # A cursor scans the table once: it passes over rows, and sets a parameter where one is odd.
        # To read it part by part takes a third more CPU, and fills the server's buffers with it.
        left, name = self._blocks.get(table, 0), sql.Identifier(*table)
        try:
            with self._session.transaction():
                opened = QUERIES["open_scan"].format(table=name, odd=odd)
                *_, (_, here) = _answers(self._session.execute(opened))
                while here:
                    began = time.monotonic()
                    step = QUERIES["scan_step"].format(rows=sql.Literal(self._step))
                    (rows, _), (_, flag), (_, there) = _answers(self._session.execute(step))
                    fit = int(self._step * STEP_S / (time.monotonic() - began))
                    if flag[0]:
                        ask(_between(here, there))
                    blocks = left
                    if there:
                        self._step = max(1, min(2 * self._step, fit))
                        blocks = min(left, _block(there) - _block(here))
                    here, rows = there, rows + 1
                    self._rows += rows
                    self._read += blocks
                    left -= blocks
                    if self._read:  # what is left has as many rows a block as what was read
                        of = -(-self._rows * self._of // self._read)
                        self._progress.correct(self._node, of)
                    self._progress.advance(self._node, rows)
                self._session.execute("CLOSE scan")
        finally:
            self._of -= left


def _answers(cursor: Any) -> list[Any]:
    """Give the number of rows, and the first row, of each statement of a message."""
    found = []
    while True:
        found.append((cursor.rowcount, cursor.fetchone() if cursor.description else None))
        if not cursor.nextset():
            return found


def _between(here: tuple[str], there: tuple[str] | None) -> sql.Composed:
    """Compose the condition of the rows from one place to before another, None for the end."""
    end = there[0] if there else f"({catalog.LAST_BLOCK},0)"
    return catalog.QUERIES["part"].format(**queries.literals(from_block=here[0], to_block=end))


def _block(row: tuple[str]) -> int:
    """Give the block of a row's ctid, such as (7,1)."""
    return int(row[0][1:].partition(",")[0])


def belongs(topology: Topology, column: sql.Composable, *, is_id: bool) -> sql.Composed:
    """Compose the shard that a row belongs to by an id, or by a key; null for an id of no shard."""
    return QUERIES["by_id" if is_id else "by_key"].format(
        column=column,
        count=sql.Literal(topology.shard_count),
        highest=sql.Literal(Layout.of(topology.id).highest_id),
    )
