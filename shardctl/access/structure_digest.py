"""Digests of a structure: whether shards are still what was copied, and what of them is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.errors import ShardctlError
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.postgres.connection import Connection

    Parts = Mapping[str, Mapping[str, str]]

QUERIES = queries.load("shardctl.access", "structure_digest.sql")

_SHOWN = 5
_18 = 180_000


class StructureChanged(ShardctlError):
    """Moved shards whose structure is not what was copied."""

    def __init__(self, node: str, move: str, changed: Sequence[str]) -> None:
        more = f", and {len(changed) - _SHOWN} more" if changed[_SHOWN:] else ""
        named = f" ({', '.join(changed[:_SHOWN])}{more})" if changed else ""
        super().__init__(
            f"node {node}: DDL has changed the moved shards since move {move} copied their "
            f"structure{named}, and logical replication does not replicate DDL",
            hint="run `shardctl moves abort`, then start the move again; run no DDL on these "
            "shards until it is over",
        )
        self.changed = tuple(changed)


def digest(session: Connection, schemas: Sequence[str]) -> str:
    """Sum up the structure of some schemas, by the names that they have at this moment."""
    return str(queries.rows_of_last(session, query(session, schemas))[0][0])


def query(session: Connection, schemas: Sequence[str]) -> sql.Composed:
    """Compose the query of `digest`, for a message that asks more."""
    return QUERIES["digest"].format(said=_said(session, schemas))


def changing(session: Connection, schemas: Sequence[str]) -> list[int | None]:
    """List the processes whose changes there no lock shows, and no digest before their commit."""
    return [pid for (pid,) in session.execute(changing_query(schemas))]


def changing_query(schemas: Sequence[str]) -> sql.Composed:
    """Compose the query of `changing`, for a message that asks more."""
    return QUERIES["changing"].format(schemas=_listed(schemas))


def parts(session: Connection, schemas: Sequence[str]) -> Parts:
    """Sum up each object there: by schema, in their order, and by the object's name."""
    found: dict[str, dict[str, str]] = {schema: {} for schema in schemas}
    for schema, name, digest in session.execute(
        QUERIES["parts"].format(said=_said(session, schemas))
    ):
        found[schema][name] = digest
    return found


def changes(before: Parts, after: Parts) -> Iterator[str]:
    """Say what has become of objects; the schemas of both are in the same order.

    >>> before = {"shard2": {"photos": "1", "users": "2", "views": "3"}}
    >>> list(changes(before, {"shard2__retired": {"likes": "1", "photos": "1", "users": "4"}}))
    ['shard2.likes was made', 'shard2.users was altered', 'shard2.views was dropped']
    """
    for (schema, one), other in zip(before.items(), after.values(), strict=True):
        for name in sorted({*one, *other}):
            if one.get(name) != other.get(name):
                did = "made" if name not in one else "altered" if name in other else "dropped"
                yield f"{schema}.{name} was {did}" if name else f"schema {schema} was {did}"


def _said(session: Connection, schemas: Sequence[str]) -> sql.Composed:
    of_18 = ", k.conenforced, k.conperiod" if session.info.server_version >= _18 else ""
    return QUERIES["said"].format(schemas=_listed(schemas), of_18=sql.SQL(of_18))


def _listed(schemas: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Literal, schemas))
