"""What models of a sharded database refuse, and what to do instead."""

from __future__ import annotations

from shardctl.errors import UsageError


class NoShardKey(UsageError):
    """A query or a row from which no shard follows; nothing was asked."""

    def __init__(self, model: str, key: str) -> None:
        super().__init__(
            f"{model}: it is unknown which shard this concerns: filter by {key}, or use "
            f"{model}.objects.for_key(...), .for_keys(...).merge(...), or `with use_shard(...)`"
        )


class SeveralShards(UsageError):
    """A query about rows of several shards, where one has to be asked."""

    def __init__(self, model: str, what: str) -> None:
        super().__init__(
            f"{model}: {what} are in several shards or databases, and a query asks one: "
            f"use {model}.objects.for_keys(...).merge(...), or ask shard by shard"
        )


class KeyChanged(UsageError):
    """A saved row whose shard key is to change: the row cannot follow into another shard."""

    def __init__(self, model: str, key: str) -> None:
        super().__init__(
            f"{model}.{key} is the shard key, which no saved row can change: "
            "create a new row with the other key, and delete this one"
        )
