"""Digests of a structure: whether shards are still what was copied, and what of them is not.

A digest reads what a structure is. Its versions only tell whether anything may have changed it,
in a fraction of the time: how many rows the catalogs have of it, and which transactions wrote them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from shardctl.errors import ShardctlError
from shardctl.postgres import queries
from shardctl.postgres.queries import identifiers, literals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shardctl.postgres.connection import Connection

    Parts = Mapping[str, Mapping[str, str]]
    Ask = Callable[[sql.Composed], Iterable[tuple[Any, ...]]]

QUERIES = queries.load("shardctl.access", "structure_digest.sql")

CATALOGS = (
    ("pg_class", "oid"),
    ("pg_attrdef", "adrelid"),
    ("pg_index", "indrelid"),
    ("pg_constraint", "conrelid"),
    ("pg_trigger", "tgrelid"),
    ("pg_type", "oid"),
)
"""What else a digest reads than schemas, and the OIDs that tell whose a row is."""
KINDS = {
    "pg_proc": ("function", "pro"),
    "pg_operator": ("operator", "opr"),
    "pg_opclass": ("operator class", "opc"),
    "pg_opfamily": ("operator family", "opf"),
    "pg_collation": ("collation", "coll"),
    "pg_conversion": ("conversion", "con"),
    "pg_ts_config": ("text search configuration", "cfg"),
    "pg_ts_dict": ("text search dictionary", "dict"),
    "pg_ts_parser": ("text search parser", "prs"),
    "pg_ts_template": ("text search template", "tmpl"),
}
"""Kinds of objects by their catalogs: what they are called, and the prefix of its columns.

The first one of a kind in a schema makes a row in pg_depend, which the versions always read:
PostgreSQL plans a query of fewer catalogs sooner.
"""
PARTS = (
    ("pg_class", "pg_attribute", "attrelid"),
    ("pg_class", "pg_policy", "polrelid"),
    ("pg_class", "pg_rewrite", "ev_class"),
    ("pg_class", "pg_sequence", "seqrelid"),
    ("pg_class", "pg_statistic_ext", "stxrelid"),
    ("pg_type", "pg_enum", "enumtypid"),
    ("pg_type", "pg_constraint", "contypid"),
    ("pg_opfamily", "pg_amop", "amopfamily"),
    ("pg_opfamily", "pg_amproc", "amprocfamily"),
    ("pg_ts_config", "pg_ts_config_map", "mapcfg"),
)
"""Catalogs of what belongs to objects: the catalog of those, and the column with their OIDs."""
_GAP = 100
"""OIDs so close are asked for as one range: the rows between cost less than one range more."""
_SHOWN = 5
_18 = 180_000


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


def known(
    session: Connection, schemas: Sequence[str]
) -> tuple[str, str, Sequence[int], sql.Composed]:
    """Give the digest and the versions of one instant: with equal versions, that digest holds.

    Versions are how many rows a structure is written in, and a sum of who has written them. Gives
    the OIDs of the schemas, too, which a rename keeps, and the query that reads the versions again,
    under any names of the schemas.
    """
    with session.transaction():
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        scope = QUERIES["scope"].format(schemas=_listed(schemas))
        [(namespaces, oids, classes, since)] = queries.rows_of_last(session, scope)
        asked = _versions(namespaces, oids, classes, since)
        found = digest(session, schemas)
        [(total,)] = queries.rows_of_last(session, asked)
    return found, total, namespaces, asked


def _versions(
    namespaces: Sequence[int], oids: Sequence[int], classes: Sequence[str], since: str
) -> sql.Composed:
    known = {catalog for catalog, _ in CATALOGS} | {*classes}
    kinds = [(name, "oid") for name in (*KINDS, "pg_default_acl") if name in known]
    parts = [(catalog, key) for owner, catalog, key in PARTS if owner in known]
    each = [
        QUERIES["version"].format(**identifiers(catalog=catalog, key=key))
        for catalog, key in (*CATALOGS, *kinds, *parts)
    ]
    first, last = zip(*_runs(oids), strict=True) if oids else ((), ())
    given = literals(first=list(first), last=list(last), since=since, namespaces=namespaces)
    return QUERIES["versions"].format(**given, each=sql.SQL("\nUNION ALL\n").join(each))


def _runs(oids: Sequence[int]) -> list[tuple[int, int]]:
    """Give the ranges in which these OIDs are, in their order.

    >>> _runs([16384, 16390, 16400, 17000])
    [(16384, 16400), (17000, 17000)]
    """
    found: list[tuple[int, int]] = []
    for oid in oids:
        if found and oid - found[-1][1] <= _GAP:
            found[-1] = found[-1][0], oid
        else:
            found.append((oid, oid))
    return found


def changing(session: Connection, schemas: Sequence[str]) -> list[int | None]:
    """List the processes whose changes there no lock shows, and no digest before their commit."""
    return [pid for (pid,) in session.execute(changing_query(schemas))]


def changing_query(schemas: Sequence[str]) -> sql.Composed:
    """Compose the query of `changing`, for a message that asks more."""
    return QUERIES["changing"].format(schemas=_listed(schemas))


def parts(
    session: Connection, schemas: Sequence[str], ask: Ask | None = None
) -> dict[str, dict[str, str]]:
    """Sum up each object there: by schema, in their order, and by the object's name.

    `ask` gives the rows of a query, as in a snapshot.
    """
    found: dict[str, dict[str, str]] = {schema: {} for schema in schemas}
    query = QUERIES["parts"].format(said=_said(session, schemas))
    for schema, name, digest in (ask or session.execute)(query):
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
    kinds = [
        QUERIES["kind"].format(
            **literals(label=f"{label} "),
            **identifiers(catalog=kind, name=f"{prefix}name", namespace=f"{prefix}namespace"),
        )
        for kind, (label, prefix) in KINDS.items()
    ]
    owners = {"pg_class": "relation"}
    parts = [
        QUERIES["part"].format(
            **literals(label=catalog),
            **identifiers(owner=owners.get(owner, "made"), catalog=catalog, key=key),
        )
        for owner, catalog, key in PARTS
    ]
    lists = {"kinds": sql.SQL("\n").join(kinds), "parts": sql.SQL("\n").join(parts)}
    return QUERIES["said"].format(schemas=_listed(schemas), of_18=sql.SQL(of_18), **lists)


def _listed(schemas: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Literal, schemas))
