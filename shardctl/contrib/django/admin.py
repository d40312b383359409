"""An admin that asks for the shard key."""

from __future__ import annotations

from django.contrib.admin import ModelAdmin


class ShardedAdmin(ModelAdmin):
    """The admin of a sharded model."""
