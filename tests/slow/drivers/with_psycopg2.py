"""psycopg 2 needs no setting."""

from __future__ import annotations

from functools import cache
from typing import Any

import psycopg2

from tests.slow.drivers import common


@cache
def connect(alias: str) -> Any:
    return psycopg2.connect(host=common.HOST, port=common.PORT, user=common.USER, dbname=alias)


class Psycopg2:
    def insert(self, alias: str, statement: str, token: int) -> None:
        with connect(alias), connect(alias).cursor() as cursor:
            cursor.execute(statement.format("%s"), [token])

    def owner(self, alias: str) -> str:
        with connect(alias), connect(alias).cursor() as cursor:
            cursor.execute(common.OWNER)
            return str(cursor.fetchone()[0])

    def code(self, error: Exception) -> str | None:
        return getattr(error, "pgcode", None)


common.run(Psycopg2())
