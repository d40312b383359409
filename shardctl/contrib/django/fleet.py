"""The aliases of shards in DATABASES, and the one ShardedDatabase of the process behind them."""

from __future__ import annotations

import atexit
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured

from shardctl.router import PoolSettings, ShardedDatabase, StatementEvent
from shardctl.topology.keys import key_unsupported

if TYPE_CHECKING:
    import os

    from shardctl.testing.fleet import ShardFleet
    from shardctl.topology.keys import Key

ENGINE = "shardctl.contrib.django.backend"

in_tests: ShardFleet | None = None
"""The fleet of a test run."""

_touched = threading.Event()
_opened: dict[str, ShardedDatabase] = {}


def shard_databases(topology: str | os.PathLike[str], **options: Any) -> dict[str, dict[str, Any]]:
    """Give DATABASES its entries for a topology's shards: `shard_0000` and so on.

    `options` are those of ShardedDatabase: `connect`, `pool`, `through`, `patience`,
    `on_statement`. All shards share one ShardedDatabase in a process. Raises TopologyMissing,
    TopologyInvalid.
    """
    from shardctl.topology import loader  # noqa: PLC0415  # of an operator's modules, and here only

    file = Path(topology).resolve()
    return {
        alias_of(number): {
            "ENGINE": ENGINE,
            "NAME": f"shard {number} of {file}",
            "CONN_MAX_AGE": None,
            "OPTIONS": {"topology": str(file), "number": number, "router": options},
        }
        for number in range(loader.load(file).shard_count)
    }


@cache
def alias_of(number: int) -> str:
    """Name the alias of a shard."""
    return f"shard_{number:04d}"


def is_shard(alias: str | None) -> bool:
    """Return whether an alias is a shard's."""
    return alias is not None and alias in _settings()


def aliases() -> list[str]:
    """List the aliases of all shards."""
    return list(_settings())


@cache
def entry() -> dict[str, Any]:
    """Give the entry of DATABASES of one shard; they differ by their number alone."""
    return next(iter(_settings().values()))


def database() -> ShardedDatabase:
    """Give the process's ShardedDatabase: for `scatter`, `insert_many`, `stats` and the like."""
    topology = entry()["OPTIONS"]["topology"] if in_tests is None else str(in_tests.topology)
    # Without a lock, which a thread might have while another one forks. One that is not kept has
    # no connections yet.
    return _opened.get(topology) or _opened.setdefault(topology, _open(topology))


def use(running: ShardFleet | None) -> None:
    """Let all shards be those of a test fleet from now on; None are the topology's own."""
    global in_tests  # noqa: PLW0603  # a process has one
    in_tests = running
    for db in _opened.values():
        db.close()
    _opened.clear()


def shard_alias(key: Key) -> str:
    """Name the alias of a key's shard, for `using=`; raises key_unsupported, key_not_an_id.

    A key of another type than those of all models is unsupported: a form's "5" is not the key 5.
    """
    if not isinstance(key, _kinds()):
        raise key_unsupported(f"{key!r}, where no model has a key of this type,")
    return alias_of(database().shard_of(key))


@cache
def _kinds() -> tuple[type, ...]:
    """Give the types of the models' keys; any, if there are no models."""
    from django.apps import apps  # noqa: PLC0415  # settings import this module
    from django.db.models import IntegerField, UUIDField  # noqa: PLC0415  # same

    def kind(field: Any) -> type:
        if field.remote_field:
            return kind(field.target_field)
        kinds = {IntegerField: int, UUIDField: UUID}
        return next((kinds[of] for of in kinds if isinstance(field, of)), str)

    found = {kind(one.key_field()) for one in apps.get_models() if hasattr(one, "key_field")}
    return tuple(found) or (object,)


def alias_for_id(number: int) -> str:
    """Name the alias of the shard that made an id; raises IdOutOfRange, ShardNotFound."""
    return alias_of(database().shard_of_id(number))


@cache
def _settings() -> dict[str, dict[str, Any]]:
    from django.db import connections  # noqa: PLC0415  # settings import this module

    found = {alias: one for alias, one in connections.settings.items() if one["ENGINE"] == ENGINE}
    if not found:
        raise ImproperlyConfigured("DATABASES has no shards: add **shard_databases(topology)")
    return found


def _open(topology: str) -> ShardedDatabase:
    from django.db import connections  # noqa: PLC0415  # settings import this module
    from django.db.backends.postgresql.base import Cursor  # noqa: PLC0415  # same

    as_django = connections.create_connection(alias_of(0))
    given = dict(entry()["OPTIONS"]["router"])
    if in_tests is not None:
        given = _local(given)
    pool = given.pop("pool", None) or PoolSettings()
    if in_tests is not None:  # where TestCase has a transaction open in each shard that it used
        pool = replace(pool, max_size=max(pool.max_size, in_tests.shard_count))

    def configure(connection: Any) -> None:
        as_django.configure(connection)
        if pool.configure is not None:
            pool.configure(connection)

    as_given = replace(pool, configure=configure, cursor_factory=Cursor)
    db = ShardedDatabase(topology, pool=as_given, **given)
    atexit.register(db.close)
    return db


def empty() -> None:
    """Empty the test fleet's tables, if anything was done since that was done last."""
    if in_tests is None:
        raise ImproperlyConfigured("only the shards of a test run can be flushed")
    if _touched.is_set():
        _touched.clear()
        in_tests.reset()


def _local(given: dict[str, Any]) -> dict[str, Any]:
    """Give the options for a test fleet: no address or TLS of production, nor of libpq's own."""
    tell = given.get("on_statement")

    def touched(event: StatementEvent) -> None:
        _touched.set()
        if tell is not None:
            tell(event)

    wanted = {name: one for name, one in given.get("connect", {}).items() if name == "user"}
    connect = {"hostaddr": "127.0.0.1", "sslmode": "prefer", "options": "", **wanted}
    return {**given, "through": None, "connect": connect, "on_statement": touched}
