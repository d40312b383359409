"""Every row of a node's tables, part by part: so a rate and the time left are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.ids.layout import Layout
from shardctl.postgres import catalog, queries

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shardctl.fanout import Progress
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, Topology

QUERIES = queries.load("shardctl.checks", "scan.sql")

BLOCKS = 1024
"""Blocks that one statement reads, 8 MB: so there is a step within a second, and a true rate."""

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
        given = {"schemas": [one for one, _ in tables], "names": [name for _, name in tables]}
        found = session.execute(QUERIES["blocks"], given)
        self._blocks = {(schema, name): blocks for schema, name, blocks in found}
        self._of = sum(self._blocks.values())
        self._rows = self._read = 0
        progress.expect(node, phase, 0, "rows")

    def read(
        self, table: Relation, odd: sql.Composable, ask: Callable[[sql.Composable], None]
    ) -> None:
        """Read a table, and let `ask` look again at each part that has rows for which `odd` holds.

        It gets the part's condition for a table `t`. A table that is read no further, since it is
        locked or gone, counts as read.
        """
        left, name = self._blocks.get(table, 0), sql.Identifier(*table)
        try:
            with self._session.transaction():
                self._session.execute(QUERIES["lock"].format(table=name))
                for blocks, part in catalog.parts(left, BLOCKS):
                    statement = QUERIES["read"].format(odd=odd, table=name, part=part)
                    rows, are_odd = queries.one(self._session, statement)
                    if are_odd:
                        ask(part)
                    self._rows += rows
                    self._read += blocks
                    left -= blocks
                    if self._read:  # what is left has as many rows a block as what was read
                        of = -(-self._rows * self._of // self._read)
                        self._progress.correct(self._node, of)
                    self._progress.advance(self._node, rows)
        finally:
            self._of -= left


def belongs(topology: Topology, column: sql.Composable, *, is_id: bool) -> sql.Composed:
    """Compose the shard that a row belongs to by an id, or by a key; null for an id of no shard."""
    return QUERIES["by_id" if is_id else "by_key"].format(
        column=column,
        count=sql.Literal(topology.shard_count),
        highest=sql.Literal(Layout.of(topology.id).highest_id),
    )
