"""The application for INSTALLED_APPS, which brings `manage.py shardmigrations`."""

from __future__ import annotations

from django.apps import AppConfig


class ShardctlConfig(AppConfig):
    """`"shardctl.contrib.django"` in INSTALLED_APPS."""

    name = "shardctl.contrib.django"
    label = "shardctl"
    verbose_name = "Shards"
