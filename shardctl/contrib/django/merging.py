"""Rows of several keys as instances of their model, in one order: `for_keys(...).merge(...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db import NotSupportedError, connections
from django.db.models.expressions import Col
from django.db.models.query import ModelIterable
from psycopg import sql

from shardctl.contrib.django import fleet
from shardctl.router import merging
from shardctl.router.statements import Answer

if TYPE_CHECKING:
    from collections.abc import Sequence


def read(
    rows: Any,
    keys: Sequence[Any],
    *,
    order_by: str | Sequence[str] | None,
    limit: int | None,
    limit_per_key: int | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """Read the rows of a query set, of these keys, from their shards."""
    model, db = rows.model, fleet.database()
    key = model.key_field()
    listed = [key.to_python(getattr(one, "pk", one)) for one in keys]
    if not listed:
        return []
    connection = connections[fleet.shard_alias(listed[0])]
    query = rows.query.clone()
    query.clear_ordering(force=True)
    compiler = query.get_compiler(connection=connection)
    compiler.setup_query()
    try:
        where, parameters = compiler.compile(query.where)
    except EmptyResultSet:
        return []
    except FullResultSet:
        where, parameters = None, ()
    columns = [column for column, _, _ in compiler.select]
    if (
        rows._iterable_class is not ModelIterable
        or query.is_sliced
        or query.distinct
        or query.combinator
        or sum(map(bool, query.alias_refcount.values())) > 1
        or not all(isinstance(one, Col) for one in columns)
    ):
        raise NotSupportedError(
            "merge() reads rows of one table as they are: no joins, select_related(), "
            "annotate(), values(), distinct() or slices; order and limit are its arguments"
        )
    named = [order_by] if isinstance(order_by, str) else order_by or ()
    asked = {
        "fields": list(dict.fromkeys(one.target.column for one in columns)),
        "table": model._meta.db_table,
        "where": None if where is None else sql.SQL(where),
        "parameters": list(parameters),
        "order_by": [_column(model, name) for name in named],
        "limit": limit,
    }
    here, elsewhere = _parted(listed)
    found = []
    if elsewhere:
        more = {"key_field": key.column, "limit_per_key": limit_per_key, "timeout": timeout}
        with connection.wrap_database_errors:
            found = db.select_keys(keys=elsewhere, **asked, **more)
    if here:
        answers = [
            _asked(alias, some, asked, key.column, limit_per_key) for alias, some in here.items()
        ]
        answers.append(Answer(found, len(found), answers[0].types))
        found = merging.merged(merging.gathering(**asked)[0], answers)
    if converters := compiler.get_converters(columns):
        found = compiler.apply_converters(found, converters)
    names = [one.target.attname for one in columns]
    place = names.index(key.attname)
    return [model.from_db(fleet.shard_alias(row[place]), names, row) for row in found]


def _parted(keys: Sequence[Any]) -> tuple[dict[str, list[Any]], list[Any]]:
    """Part keys into those of shards in which this thread has a transaction open, and the others.

    That transaction may have changed what it reads; other connections would not see that.
    """
    opened = {
        wrapper.alias
        for wrapper in connections.all(initialized_only=True)
        if fleet.is_shard(wrapper.alias) and wrapper.connection and wrapper.connection.lent
    }
    if not opened:
        return {}, list(keys)
    here: dict[str, list[Any]] = {}
    elsewhere = []
    for one in keys:
        alias = fleet.shard_alias(one)
        if alias in opened:
            here.setdefault(alias, []).append(one)
        else:
            elsewhere.append(one)
    return here, elsewhere


def _asked(
    alias: str, keys: list[Any], asked: dict[str, Any], key: str, per_key: int | None
) -> Answer:
    """Ask within an open transaction, which so knows of the fence that this may meet."""
    gathering, named = merging.gathering(**asked)
    schema = fleet.database().schema_of(fleet.database().shard_of(keys[0]))
    texts = isinstance(keys[0], str)
    statement = merging.select_keys([schema], gathering, key, per_key, texts=texts)
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, named | {merging.keys_of(0): keys})
        types = tuple(map(cursor.pgresult.ftype, range(cursor.pgresult.nfields)))
        return Answer(cursor.fetchall(), cursor.rowcount, types)


def _column(model: Any, name: str) -> str:
    bare = name.removeprefix("-")
    field = model._meta.pk if bare == "pk" else model._meta.get_field(bare)
    return f"-{field.column}" if name.startswith("-") else str(field.column)
