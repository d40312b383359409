"""Which shard a query or a block of code is about, and the database router that says so."""

from __future__ import annotations

import functools
import inspect
import secrets
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from shardctl.contrib.django import fleet
from shardctl.contrib.django.errors import NoShardKey
from shardctl.router.errors import REPEATABLE, is_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.topology.keys import Key

Work = TypeVar("Work", bound="Callable[..., Any]")

SQL_ALIAS = "shards"
"""Stands for all shards where `shardmigrations` writes SQL."""

_LATE = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)

_current: ContextVar[str | None] = ContextVar("shard", default=None)


def evenly() -> int:
    """Choose a shard for what has no key yet, each as often as the others."""
    return secrets.randbelow(fleet.database().shard_count)


@contextmanager
def use_shard(key: Key | None = None, *, number: int | None = None) -> Iterator[str]:
    """Let queries that name no key be about a key's shard, or that with a number; give its alias.

    It begins no transaction, and a key in a query itself goes before it.
    """
    if (key is None) is (number is None):
        raise TypeError("pass a shard key, or number= for a shard's number")
    alias = fleet.shard_alias(key) if key is not None else fleet.alias_of(number or 0)
    with use_alias(alias):
        yield alias


@contextmanager
def use_alias(alias: str | None) -> Iterator[None]:
    """Do the same with the name of an alias; None leaves it as it is."""
    token = _current.set(alias or current())
    try:
        yield
    finally:
        _current.reset(token)


def current() -> str | None:
    """Name the alias of the innermost `use_shard`."""
    return _current.get()


def shard_atomic(
    key_from: str | Callable[..., Key], *, attempts: int = 3
) -> Callable[[Work], Work]:
    """Make a function run in a transaction of one shard, and in its `use_shard`.

    `key_from` is the name of the parameter that is the key, or is called with the function's
    arguments and gives the key. After ShardMoved, a deadlock and a serialization failure nothing
    was written: the function is called again, up to `attempts` times in all. Within an
    `atomic()` of the same shard it is called once, at a savepoint.

        @shard_atomic("user_id")
        def like(user_id, photo_id): ...
    """
    if attempts < 1:
        raise ValueError(f"attempts: expected a number from 1, found {attempts}")

    def decorate(work: Work) -> Work:
        if any(is_late(work) for is_late in _LATE):
            raise TypeError(f"{work.__qualname__}() would run after the transaction, not in it")
        signature = inspect.signature(work)
        if isinstance(key_from, str) and key_from not in signature.parameters:
            raise TypeError(f"{work.__qualname__}() has no parameter {key_from!r}")

        @functools.wraps(work)
        def repeated(*args: Any, **kwargs: Any) -> Any:
            if isinstance(key_from, str):
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                key = bound.arguments[key_from]
            else:
                key = key_from(*args, **kwargs)
            return _run(key, functools.partial(work, *args, **kwargs), attempts)

        return repeated  # type: ignore[return-value]

    return decorate


def _run(key: Key, work: Callable[[], Any], attempts: int) -> Any:
    with use_shard(key) as alias:
        if connections[alias].in_atomic_block:
            attempts = 1
        for left in reversed(range(attempts)):
            committed: list[bool] = []
            try:
                with transaction.atomic(using=alias):
                    transaction.on_commit(lambda: committed.append(True), using=alias)  # noqa: B023
                    return work()
            except Exception as error:
                # What raises after the commit was called by it, and must not be done twice.
                if committed or not left or not is_of(error, REPEATABLE):
                    raise
    raise AssertionError


def is_sharded(model: Any) -> bool:
    """Return whether a model's tables are in the shards; also one of a migration's state."""
    # Not by their classes, which are made of this module.
    return hasattr(model, "key_field") or any(
        # The table of Django's cache has a `_meta` that is none.
        hasattr(one, "shard_key")
        for one in getattr(model._meta, "managers", ())
    )


def of_instance(model: Any, instance: Any) -> str | None:
    """Name the shard of a row, or of the rows that refer to it, where they have to be there, too.

    They have if the key refers to it, or a foreign key that the shard itself checks.
    """
    if instance is None:
        return None
    if is_sharded(type(instance)):
        there = [one for one in model._meta.concrete_fields if _refers(one, instance)]
        same = all(one.db_constraint for one in there) if there else isinstance(instance, model)
        return instance.shard_alias() if same else None
    key = model.key_field()
    value = getattr(instance, key.target_field.attname) if _refers(key, instance) else None
    return None if value is None else fleet.shard_alias(value)


def _refers(field: Any, instance: Any) -> bool:
    return field.remote_field is not None and isinstance(instance, field.remote_field.model)


class ShardRouter:
    """Of DATABASE_ROUTERS: sharded models to their shards, and all others elsewhere."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        """Name the alias that a query without `using` is about; raises NoShardKey."""
        instance = hints.get("instance")
        if not is_sharded(model):
            # Else Django would take the database of the instance, which is a shard.
            return DEFAULT_DB_ALIAS if instance is not None and is_sharded(type(instance)) else None
        # A row itself is there, whatever rows it may refer to.
        own = instance.shard_alias() if isinstance(instance, model) else None
        alias = own or of_instance(model, instance) or current()
        if alias is None and instance is None:
            raise NoShardKey(model.__name__, model.shard_key)
        return alias

    db_for_write = db_for_read

    def allow_relation(self, one: Any, other: Any, **_: Any) -> bool | None:
        """Let rows of shards refer to rows elsewhere: keys of tables there are not checked."""
        return True if is_sharded(type(one)) or is_sharded(type(other)) else None

    def allow_migrate(
        self, db: str, app_label: str, model_name: str | None = None, **hints: Any
    ) -> bool | None:
        """Keep `migrate` out of shards, and sharded models out of other databases."""
        if fleet.is_shard(db):
            return False
        model = hints.get("model")
        if model is None and model_name is not None:
            model = apps.all_models[app_label].get(model_name.lower())
        sharded = hints.get("sharded") if model is None else is_sharded(model)
        if sharded is None:
            models = list(apps.all_models[app_label].values())
            sharded = bool(models) and all(map(is_sharded, models))
        return sharded if db == SQL_ALIAS else (False if sharded else None)
