"""The SQL that makes one shard: schema, sequences, `next_id()`, grants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.ids import generator

if TYPE_CHECKING:
    from shardctl.provision.plan import ShardWork

_COUNTER = sql.Identifier(generator.COUNTER)
_REGISTER = sql.Identifier(generator.REGISTER)
_WRAPPER = sql.Identifier(generator.WRAPPER)


def script(work: ShardWork) -> sql.Composed:
    """Compose the statements that `work` needs, but for the migrations, as one text.

    It leaves `search_path` as migrations want it: the shard's schema, then public.
    """
    schema = sql.Identifier(work.schema)
    parts: list[sql.Composable] = []
    if work.create:
        parts.append(sql.SQL("CREATE SCHEMA {};").format(schema))
    for missing, sequence in ((work.counter, _COUNTER), (work.register, _REGISTER)):
        if missing:
            parts.append(
                sql.SQL("CREATE SEQUENCE {}.{} MINVALUE 0 START 0;").format(schema, sequence)
            )
    if work.wrapper:
        body = sql.Literal(generator.wrapper_body(work.schema, work.shard))
        parts.append(
            sql.SQL(
                "CREATE OR REPLACE FUNCTION {}.{}() RETURNS bigint LANGUAGE sql VOLATILE AS {};"
            ).format(schema, _WRAPPER, body)
        )
    parts += [_grants(schema, role, existing=not work.create) for role in work.grant_to]
    parts.append(search_path(work.schema))
    return sql.SQL("\n").join(parts)


def search_path(schema: str, *, session: bool = False) -> sql.Composed:
    """Compose the setting under which migrations run, for the transaction or the session."""
    scope = sql.SQL("SESSION" if session else "LOCAL")
    return sql.SQL("SET {} search_path TO {}, public;").format(scope, sql.Identifier(schema))


def lock_timeout(milliseconds: int, *, session: bool = False) -> sql.Composed:
    """Compose the setting that bounds each wait for a lock, for the transaction or the session."""
    scope = sql.SQL("SESSION" if session else "LOCAL")
    return sql.SQL("SET {} lock_timeout TO {}").format(scope, sql.Literal(milliseconds))


def _grants(schema: sql.Identifier, role: str, *, existing: bool) -> sql.Composed:
    """Let a role use the shard, with what later migrations will put into it."""
    names: dict[str, sql.Composable] = {
        "schema": schema,
        "role": sql.Identifier(role),
        "counter": _COUNTER,
        "register": _REGISTER,
        "wrapper": _WRAPPER,
        "defaults": sql.SQL("ALTER DEFAULT PRIVILEGES IN SCHEMA {}").format(schema),
    }
    grants = [
        "GRANT USAGE ON SCHEMA {schema} TO {role};",
        "GRANT USAGE, SELECT, UPDATE ON SEQUENCE {schema}.{counter} TO {role};",
        "GRANT USAGE, SELECT, UPDATE ON SEQUENCE {schema}.{register} TO {role};",
        "GRANT EXECUTE ON FUNCTION {schema}.{wrapper}() TO {role};",
        "{defaults} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role};",
        "{defaults} GRANT USAGE, SELECT, UPDATE ON SEQUENCES TO {role};",
    ]
    if existing:  # tables that were there before the role was
        grants += [
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};",
            "GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};",
        ]
    return sql.SQL("\n").join(sql.SQL(grant).format(**names) for grant in grants)
