"""What killed runs of pg_repack leave in a database: log tables, copies, types, triggers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.postgres import queries

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection

LOCK_CLASS = 16185446
"""The class of the advisory locks under which pg_repack works on tables."""

_QUERIES = queries.load("shardctl.postgres", "repack_left.sql")


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a killed run left of one table; `schema` and `table` are None where that is gone."""

    oid: int
    schema: str | None
    table: str | None
    objects: tuple[str, ...]

    @property
    def name(self) -> str | None:
        """The table with its schema."""
        return None if self.table is None else f"{self.schema}.{self.table}"


def read(session: Connection) -> tuple[Leftover, ...]:
    """List what killed runs left in the session's database, where no pg_repack is running."""
    found = session.execute(_QUERIES["leftovers"], {"class": LOCK_CLASS})
    return tuple(
        Leftover(oid, schema, table, tuple(objects)) for oid, schema, table, objects in found
    )
