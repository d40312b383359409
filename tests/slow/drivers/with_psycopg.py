"""psycopg 3 needs `prepare_threshold=None` through a pooler without prepared statements."""

from __future__ import annotations

from functools import cache
from typing import Any

import psycopg

from tests.slow.drivers import common


@cache
def connect(alias: str) -> psycopg.Connection[Any]:
    return psycopg.connect(
        host=common.HOST, port=common.PORT, user=common.USER, dbname=alias, prepare_threshold=None
    )


class Psycopg:
    def insert(self, alias: str, statement: str, token: int) -> None:
        with connect(alias).transaction():
            connect(alias).execute(statement.format("%s").encode(), [token])

    def owner(self, alias: str) -> str:
        with connect(alias).transaction():
            [(node,)] = connect(alias).execute(common.OWNER.encode()).fetchall()
        return str(node)

    def code(self, error: Exception) -> str | None:
        return error.sqlstate if isinstance(error, psycopg.Error) else None


common.run(Psycopg())
