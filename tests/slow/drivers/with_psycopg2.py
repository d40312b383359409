"""psycopg 2 needs no setting."""

from __future__ import annotations

from functools import cache
from typing import Any

import psycopg2

from tests.slow.drivers import common


@cache
def connect(alias: str) -> Any:
    return psycopg2.connect(host=common.HOST, port=common.PORT, user=common.USER, dbname=alias)


def execute(alias: str, statement: str, *given: int) -> Any:
    with connect(alias), connect(alias).cursor() as cursor:
        cursor.execute(statement, given)
        return cursor.fetchall()


common.run(execute, mark="%s", code="pgcode")
