"""SQLAlchemy needs its driver's setting, psycopg's in this case."""

from __future__ import annotations

from functools import cache

from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from tests.slow.drivers import common


@cache
def engine(alias: str) -> Engine:
    where = URL.create(
        "postgresql+psycopg", common.USER, None, common.HOST, int(common.PORT), alias
    )
    return create_engine(where, connect_args={"prepare_threshold": None})


class SQLAlchemy:
    def insert(self, alias: str, statement: str, token: int) -> None:
        with engine(alias).begin() as connection:
            connection.execute(text(statement.format(":token")), {"token": token})

    def owner(self, alias: str) -> str:
        with engine(alias).begin() as connection:
            return str(connection.scalar(text(common.OWNER)))

    def code(self, error: Exception) -> str | None:
        return getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None


common.run(SQLAlchemy())
