"""What Django through shardctl costs, against stock Django on one plain connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.bench import fleet, pooling
from tests.bench.measure import Row, per, timed, versus

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.measure import Scale, Side

SHARDS = 64
KEY = 5
TARGET = 1.25


def django_row(scale: Scale) -> list[Row]:
    """Time one-row inserts and selects of Django's models through shardctl, and of stock Django.

    Fair: the same process, pooler, shard, table and fields; stock Django keeps one connection open,
    to the shard's own alias.
    """
    with fleet.running(2) as running:
        running.init(SHARDS)
        with pooling.pooled(running, SHARDS) as behind:
            pooler = behind.pooler
            file = running.directory / "django.yaml"
            file.write_text(
                f"{running.topology(SHARDS).path.read_text()}\npoolers:\n  p1: {{host: 127.0.0.1,"
                f" port: {pooler.port}, config: {pooler.config}, aliases: [node]}}\n"
            )
            _configure(file, behind)
            return _rows(scale)


def _configure(file: Any, behind: pooling.Pooled) -> None:
    import django
    from django.conf import settings

    from shardctl.contrib.django import shard_databases

    plain = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": behind.aliases[KEY],
        "USER": "app",
        "HOST": "127.0.0.1",
        "PORT": behind.pooler.port,
        "CONN_MAX_AGE": None,
    }
    settings.configure(
        DATABASES={"default": plain, **shard_databases(file)},
        DATABASE_ROUTERS=["shardctl.contrib.django.ShardRouter"],
    )
    django.setup()


def _rows(scale: Scale) -> list[Row]:
    from django.db import models

    from shardctl.contrib.django import ShardedId, ShardedModel

    class Ours(ShardedModel):
        shard_key = "user_id"
        id = ShardedId()
        user_id = models.BigIntegerField()
        caption = models.TextField()
        image_url = models.TextField()

        class Meta:
            app_label, db_table = "ours", "photos_by_user"

    class Stock(models.Model):  # noqa: DJ008
        id = models.BigAutoField(primary_key=True)
        user_id = models.BigIntegerField()
        caption = models.TextField()
        image_url = models.TextField()

        class Meta:
            app_label, db_table = "stock", "photos_by_user"

    count, given = scale.of(200, 10), {"user_id": KEY, "caption": "dusk", "image_url": "/1.jpg"}
    found = Ours.objects.create(**given).pk

    def of(call: Callable[[Any], Any], model: Any) -> Side:
        return timed(lambda: [call(model) for _ in range(count)])

    rows: list[Row] = []
    for what, call in {
        "insert": lambda model: model.objects.create(**given),
        "select": lambda model: model.objects.get(user_id=KEY, pk=found),
    }.items():
        sides = {"ours": of(call, Ours), "stock": of(call, Stock)}
        name, against = f"Django: one-row {what}", {"stock": ("stock Django", TARGET)}
        rows += versus(name, sides, scale.of(31, 2), against, per(count, "row"), warm=True)
    return rows
