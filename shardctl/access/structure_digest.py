"""Digests of a structure: whether shards are still what was copied, and what of them is not.

A digest reads what a structure is. Its versions only tell whether anything may have changed it,
which takes a fifth of the time: the rows of all catalogs that a digest reads, whatever is in them.
Where a server has many more tables than the shards, a digest of these is sooner read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.errors import ShardctlError
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.postgres.connection import Connection

    Parts = Mapping[str, Mapping[str, str]]

QUERIES = queries.load("shardctl.access", "structure_digest.sql")

CATALOGS = {
    "pg_class": "oid",
    "pg_attrdef": "adrelid",
    "pg_index": "indrelid",
    "pg_constraint": "oid",
    "pg_trigger": "tgrelid",
    "pg_rewrite": "ev_class",
    "pg_policy": "polrelid",
    "pg_sequence": "seqrelid",
    "pg_type": "oid",
    "pg_enum": "enumtypid",
    "pg_proc": "oid",
    "pg_default_acl": "oid",
}
"""What else a digest reads than schemas and columns, and what leaves PostgreSQL's own rows out."""

RARE = {
    "pg_statistic_ext": "stxrelid",
    "pg_operator": "oid",
    "pg_opclass": "oid",
    "pg_opfamily": "oid",
    "pg_amop": "amopfamily",
    "pg_amproc": "amprocfamily",
    "pg_collation": "oid",
    "pg_conversion": "oid",
    "pg_ts_config": "oid",
    "pg_ts_config_map": "mapcfg",
    "pg_ts_dict": "oid",
    "pg_ts_parser": "oid",
    "pg_ts_template": "oid",
}
"""The same, of kinds that few applications make: PostgreSQL plans a query of fewer catalogs sooner.

The first of such a kind in a schema is seen without its catalog: with itself, or with what it is
part of, it makes a row in pg_depend that names the schema.
"""
_PARTS = {
    "pg_amop": "pg_opfamily",
    "pg_amproc": "pg_opfamily",
    "pg_ts_config_map": "pg_ts_config",
}
"""What these are part of may get the first of them later, so it tells whether they count."""

_SOON_BYTES = 1 << 20
"""Of pg_class: some 5,000 relations, whose rows are read in a few milliseconds."""
_TIMES = 5
"""As long as the rows of a table take, a digest of it takes so many times."""
_SHOWN = 5
_18 = 180_000


@dataclass(frozen=True, slots=True)
class Versions:
    """A sum of the rows in which a structure is written; false where it is not known."""

    total: str = ""
    namespaces: tuple[int, ...] = ()
    """The OIDs of the schemas, which a rename keeps."""
    query: sql.Composed = field(default_factory=lambda: sql.Composed([]))
    """What reads the sum again, under any names of the schemas."""

    def __bool__(self) -> bool:
        """Return whether it is known."""
        return bool(self.total)


class StructureChanged(ShardctlError):
    """Moved shards whose structure is not what was copied."""

    resumable = False

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


def known(session: Connection, schemas: Sequence[str]) -> tuple[str, Versions]:
    """Give the digest and the versions of one instant: with equal versions, that digest holds.

    The versions are empty where it would take longer to read them again than the digest.
    """
    is_soon = QUERIES["is_soon"].format(
        schemas=_listed(schemas), bytes=sql.Literal(_SOON_BYTES), times=sql.Literal(_TIMES)
    )
    if queries.rows_of_last(session, is_soon) != [(True,)]:
        return digest(session, schemas), Versions()
    with session.transaction():
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        [(namespaces, relations, rare)] = queries.rows_of_last(session, _scope(schemas))
        asked = _versions(namespaces, relations, rare)
        [(found,)] = queries.rows_of_last(session, query(session, schemas))
        [(total,)] = queries.rows_of_last(session, asked)
    return str(found), Versions(total, tuple(namespaces), asked)


def now(session: Connection, versions: Versions) -> str:
    """Sum up the rows again, as `versions` did."""
    return str(queries.rows_of_last(session, versions.query)[0][0])


def _scope(schemas: Sequence[str]) -> sql.Composed:
    each = [
        QUERIES["has_rows"].format(
            name=sql.Literal(catalog),
            catalog=sql.Identifier("pg_catalog", whole),
            key=sql.Identifier(RARE[whole]),
        )
        for catalog in RARE
        for whole in [_PARTS.get(catalog, catalog)]
    ]
    rare = sql.SQL("\nUNION ALL\n").join(each)
    return QUERIES["scope"].format(schemas=_listed(schemas), rare=rare)


def _versions(
    namespaces: Sequence[int], relations: Sequence[int], rare: Sequence[str]
) -> sql.Composed:
    catalogs = CATALOGS | {catalog: RARE[catalog] for catalog in rare}
    each = [
        QUERIES["version"].format(
            catalog=sql.Identifier("pg_catalog", catalog), key=sql.Identifier(key)
        )
        for catalog, key in catalogs.items()
    ]
    return QUERIES["versions"].format(
        namespaces=sql.Literal(list(namespaces)),
        relations=sql.Literal(list(relations)),
        each=sql.SQL("\nUNION ALL\n").join(each),
    )


def changing(session: Connection, schemas: Sequence[str]) -> list[int | None]:
    """List the processes whose changes there no lock shows, and no digest before their commit."""
    return [pid for (pid,) in session.execute(changing_query(schemas))]


def changing_query(schemas: Sequence[str]) -> sql.Composed:
    """Compose the query of `changing`, for a message that asks more."""
    return QUERIES["changing"].format(schemas=_listed(schemas))


def parts(session: Connection, schemas: Sequence[str]) -> dict[str, dict[str, str]]:
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
