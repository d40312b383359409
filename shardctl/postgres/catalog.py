"""The catalog's view of shards: a fixed number of queries, however many there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from psycopg import sql

from shardctl.ids import generator
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Database, Topology

QUERIES = queries.load("shardctl.postgres", "catalog.sql")

_REPACK_LOCK = 16185446
"""The class of the advisory locks under which pg_repack works on tables."""
LAST_BLOCK = 0xFFFFFFFF
"""Behind every block of a table."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema that may be a shard's.

    `wrapper` is the body of its `next_id()`, and what else it may have (see `functions`), or
    None. `ungranted` roles lack something, or may set the generator's sequences; of these,
    `strangers` may not even use the schema. `unfit` sequences would not serve the generator (of
    another type, caching, cycling).
    """

    counter: bool
    register: bool
    wrapper: str | None
    ungranted: Sequence[str]
    strangers: Sequence[str] = ()
    unfit: bool = False


def read_schemas(connection: Connection, roles: Sequence[str]) -> dict[str, Schema]:
    """Read every schema that may be a shard's, by name; `roles` are the applications'."""
    names = {
        "counter": generator.COUNTER,
        "register": generator.REGISTER,
        "wrapper": generator.WRAPPER,
        "roles": list(roles),
    }
    found = connection.execute(QUERIES["schemas"], names)
    return {name: Schema(*described) for name, *described in found}


def read_functions(connection: Connection) -> dict[str, str]:
    """Read the functions in schema shardctl by name and types, as `generator.bodies` has them.

    Empty where the schema is missing.
    """
    return dict(connection.execute(QUERIES["functions"]).fetchall())


def present(connection: Connection, schemas: Iterable[str]) -> set[str]:
    """Return those of some schemas that exist in this database."""
    found = connection.execute(QUERIES["present"], {"schemas": list(schemas)})
    return {name for (name,) in found}


def read_ungranted(connection: Connection, roles: Sequence[str]) -> tuple[str, ...]:
    """Name the roles that lack a grant on the database or on schema shardctl, which exists."""
    found = connection.execute(QUERIES["ungranted"], {"roles": list(roles)})
    return tuple(role for (role,) in found)


def read_unvalidated(
    connection: Connection, constraint: str, schemas: Sequence[str]
) -> list[tuple[str, str]]:
    """List schema and table of every CHECK of this name that is not validated."""
    names = {"name": constraint, "schemas": list(schemas)}
    return connection.execute(QUERIES["unvalidated"], names).fetchall()


RoleSettings: TypeAlias = "Mapping[str, Mapping[str, str]]"
"""With which parameters roles' sessions begin, by role; without those that are the server's."""

DECISIVE = (
    "default_transaction_read_only",
    "role",
    "row_security",
    "search_path",
    "session_replication_role",
    "standard_conforming_strings",
)
"""Parameters with which a statement of a session fails, or does something else."""
SET_ALIKE = (
    "`\\drds` in psql shows where: SET or RESET it alike everywhere with ALTER ROLE or ALTER "
    "DATABASE (where sessions begin read-only: BEGIN READ WRITE; ALTER ...; COMMIT)"
)
"""What an operator does about settings that differ."""


def read_role_settings(connection: Connection, database: Database) -> RoleSettings:
    """Read the settings of the applications' roles, and of the database, as sessions get them.

    Without `app_roles`, those of `database.user`. A value that is PostgreSQL's own default counts
    as none.
    """
    roles = {"roles": list(database.app_roles or (database.user,))}
    found: dict[str, dict[str, str]] = {}
    for role, name, value, usual in connection.execute(QUERIES["role_settings"], roles):
        of_role = found.setdefault(role, {})
        if name is not None and not usual:
            of_role[name] = value
    return found


def shown_setting(name: str, value: str | None) -> str:
    """Give a value for an operator; an application's own parameters may be secrets.

    >>> shown_setting("work_mem", None), shown_setting("app.key", "8f0c")
    ('not set', '(not shown)')
    """
    if value is None:
        return "not set"
    return "(not shown)" if "." in name else value


class Keyed(NamedTuple):
    """A table whose rows belong to the key `column` that is named for table `named` of `home`.

    It is that table, or a partition or an inheritance child of it, also in another schema.
    `kind` is r, p (partitioned: it has no rows of its own) or f (foreign).
    """

    home: str
    schema: str
    name: str
    kind: str
    named: str
    column: str
    present: bool
    """Whether it has the column."""
    integer: bool
    ours: bool
    """Whether the column's type is this role's or a superuser's, who decide what its casts do."""


def read_keyed(
    connection: Connection, schemas: Sequence[str], columns: Mapping[str, str]
) -> list[Keyed]:
    """List the tables to which keys apply; `columns` maps tables' names to their key columns."""
    given = {"schemas": list(schemas)}
    given |= {"tables": list(columns), "columns": list(columns.values())}
    return [Keyed(*row) for row in connection.execute(QUERIES["keyed"], given)]


def read_tables_only(connection: Connection) -> None:
    """Let a session that reads rows of applications read no views, where the server can do that."""
    connection.execute(QUERIES["tables_only"])


def parts(blocks: int, size: int) -> Iterator[tuple[int, sql.Composable]]:
    """Compose conditions for a table `t` of so many blocks, part by part, of `size` blocks each.

    Each comes with the number of its blocks; a table that has grown meanwhile is read to its end.
    """
    if blocks <= size:
        yield blocks, sql.SQL("")
        return
    for first in range(0, blocks, size):
        end = first + size if first + size < blocks else LAST_BLOCK
        places = queries.literals(from_block=f"({first},0)", to_block=f"({end},0)")
        yield min(size, blocks - first), QUERIES["part"].format(**places)


def read_shadows(
    connection: Connection, topology: Topology, schemas: Sequence[str] | None = None
) -> tuple[tuple[str, str], ...]:
    """List tables behind the shards' on a search_path that have a shard's table's name.

    `schemas` are those whose tables count; None stands for all shards'.
    With such a one, a prepared INSERT writes there once its shard has been fenced.
    """
    shards = [topology.schema(shard) for shard in topology.owners()]
    given = {"shards": shards, "roles": list(topology.database.app_roles)}
    given["schemas"] = shards if schemas is None else list(schemas)
    return tuple((schema, table) for schema, table in connection.execute(QUERIES["shadows"], given))


@dataclass(frozen=True, slots=True)
class Intruder:
    """Something in schema public by which a role could run its code as shardctl's role."""

    what: str
    remedy: str
    """The statement that removes it."""


def read_intruders(connection: Connection) -> tuple[Intruder, ...]:
    """List those; superusers, this role and the owners of database and schema are trusted."""
    return tuple(Intruder(*row) for row in connection.execute(QUERIES["intruders"]))


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a killed run left of one table; `schema` and `table` are None where that is gone."""

    oid: int
    schema: str | None
    table: str | None
    objects: Sequence[str]

    @property
    def name(self) -> str | None:
        """The table with its schema."""
        return None if self.table is None else f"{self.schema}.{self.table}"


def repack_leftovers(session: Connection) -> tuple[Leftover, ...]:
    """List what killed runs left in the session's database, where no pg_repack is running."""
    found = session.execute(QUERIES["repack_leftovers"], {"class": _REPACK_LOCK})
    return tuple(Leftover(*row) for row in found)
