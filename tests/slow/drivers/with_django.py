"""Django needs `DISABLE_SERVER_SIDE_CURSORS`, for `iterator()`; it prepares nothing by itself."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from django.db import connections, transaction

from tests.slow.drivers import common


def database(alias: str) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": common.HOST,
        "PORT": common.PORT,
        "USER": common.USER,
        "NAME": alias,
        "CONN_MAX_AGE": None,
        "DISABLE_SERVER_SIDE_CURSORS": True,
    }


class Django:
    def insert(self, alias: str, statement: str, token: int) -> None:
        with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
            cursor.execute(statement.format("%s"), [token])

    def owner(self, alias: str) -> str:
        with connections[alias].cursor() as cursor:
            cursor.execute(common.OWNER)
            return str(cursor.fetchone()[0])

    def code(self, error: Exception) -> str | None:
        return getattr(error.__cause__, "sqlstate", None)


aliases = ["shard2", f"{common.DATABASE}_a", f"{common.DATABASE}_b"]
settings.configure(
    DATABASES={"default": {}} | {alias: database(alias) for alias in aliases}, USE_TZ=True
)
django.setup()
common.run(Django())
