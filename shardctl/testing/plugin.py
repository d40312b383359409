"""The pytest plugin: options and fixtures of a test fleet.

Pytest loads it in every run on a machine that has shardctl, so the fixtures import the rest.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.router import AsyncShardedDatabase, ShardedDatabase
    from shardctl.testing.fleet import ShardFleet

_TOPOLOGY = "shard_fleet_topology"
_SHARDS = "shard_fleet_shards"
_NODES = "shard_fleet_nodes"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options in the application's pytest configuration."""
    parser.addini(
        _TOPOLOGY, "the application's topology.yaml, below rootdir", default="topology.yaml"
    )
    parser.addini(_SHARDS, "shards of the test fleet, at most the file's; all", default="")
    parser.addini(_NODES, "nodes of the test fleet, at most as many as shards", default="2")


@pytest.fixture(scope="session")
def shard_fleet(pytestconfig: pytest.Config) -> Iterator[ShardFleet]:
    """Run a fleet of local servers with the application's own shards and migrations."""
    from shardctl.testing import fleet  # noqa: PLC0415  # see above

    application = pytestconfig.rootpath / str(pytestconfig.getini(_TOPOLOGY))
    if not application.exists():
        hint = f"set {_TOPOLOGY} to the application's topology file in pytest's configuration"
        pytest.fail(f"shardctl: {application}: file not found\n  {hint}", pytrace=False)
    shards = _number(pytestconfig, _SHARDS) if pytestconfig.getini(_SHARDS) else None
    nodes = _number(pytestconfig, _NODES)
    with _reported(), fleet.running(application, shards=shards, nodes=nodes) as running:
        yield running


@pytest.fixture
def sharded_db(shard_fleet: ShardFleet) -> Iterator[ShardedDatabase]:
    """Open the fleet as an application does, with the tables as after the migrations."""
    from shardctl.router import ShardedDatabase  # noqa: PLC0415  # same

    with _reset(shard_fleet), ShardedDatabase(shard_fleet.topology) as db:
        yield db


@pytest.fixture
def async_sharded_db(shard_fleet: ShardFleet) -> Iterator[Callable[[], AsyncShardedDatabase]]:
    """Return a factory of the same for an event loop, which opens and closes it.

    Use it as `async with async_sharded_db() as db`, with any plugin that runs the test's loop.
    """
    from shardctl.router import AsyncShardedDatabase  # noqa: PLC0415  # same

    with _reset(shard_fleet):
        yield partial(AsyncShardedDatabase, shard_fleet.topology)


@contextmanager
def _reset(shard_fleet: ShardFleet) -> Iterator[None]:
    """Reset the fleet, and hide libpq's variables from routers on it."""
    from shardctl.testing.directory import without_libpq  # noqa: PLC0415  # same

    with _reported():
        shard_fleet.reset()
    with without_libpq():
        yield


@contextmanager
def _reported() -> Iterator[None]:
    """Show shardctl's errors as the command prints them, without a traceback."""
    from shardctl.errors import ShardctlError  # noqa: PLC0415  # same
    from shardctl.testing import fleet  # noqa: PLC0415  # same

    try:
        yield
    except ShardctlError as error:
        # From None: otherwise pytest would also show the original error.
        raise pytest.fail.Exception(fleet.report(error), pytrace=False) from None


def _number(config: pytest.Config, option: str) -> int:
    text = str(config.getini(option))
    if not text.isdecimal() or int(text) < 1:
        pytest.fail(f"{option}: expected a number from 1, found {text!r}", pytrace=False)
    return int(text)
