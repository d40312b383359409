"""What pytest loads: the options and fixtures of a test fleet.

It is loaded in every run on a machine that has shardctl, so all else is imported by the fixtures.
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
    parser.addini(_SHARDS, "shards of the test fleet, at most the file's", default="8")
    parser.addini(_NODES, "nodes of the test fleet, at most as many as shards", default="2")


@pytest.fixture(scope="session")
def shard_fleet(pytestconfig: pytest.Config) -> Iterator[ShardFleet]:
    """Run a fleet of local servers with the application's own shards and migrations."""
    from shardctl.testing import fleet  # noqa: PLC0415  # see above

    application = pytestconfig.rootpath / str(pytestconfig.getini(_TOPOLOGY))
    if not application.exists():
        hint = f"name the application's topology as {_TOPOLOGY} in pytest's configuration"
        pytest.fail(f"shardctl: {application}: there is no such file\n  {hint}", pytrace=False)
    shards, nodes = _number(pytestconfig, _SHARDS), _number(pytestconfig, _NODES)
    with _as_told(), fleet.running(application, shards=shards, nodes=nodes) as running:
        yield running


@pytest.fixture
def sharded_db(shard_fleet: ShardFleet) -> Iterator[ShardedDatabase]:
    """Open the fleet as an application does, with all shards as the migrations left them."""
    from shardctl.router import ShardedDatabase  # noqa: PLC0415  # same

    with _reset(shard_fleet), ShardedDatabase(shard_fleet.topology) as db:
        yield db


@pytest.fixture
def async_sharded_db(shard_fleet: ShardFleet) -> Iterator[Callable[[], AsyncShardedDatabase]]:
    """Give what makes the same for an event loop, to be opened and closed there.

    It is `async with async_sharded_db() as db`, with whatever plugin runs the test's loop.
    """
    from shardctl.router import AsyncShardedDatabase  # noqa: PLC0415  # same

    with _reset(shard_fleet):
        yield partial(AsyncShardedDatabase, shard_fleet.topology)


@contextmanager
def _reset(shard_fleet: ShardFleet) -> Iterator[None]:
    """Reset the fleet, and let no router on it be led elsewhere by libpq's variables."""
    from shardctl.testing.environment import without_libpq  # noqa: PLC0415  # same

    with _as_told():
        shard_fleet.reset()
    with without_libpq():
        yield


@contextmanager
def _as_told() -> Iterator[None]:
    """Show shardctl's errors as it tells them, without a traceback."""
    from shardctl.errors import ShardctlError  # noqa: PLC0415  # same
    from shardctl.testing import fleet  # noqa: PLC0415  # same

    try:
        yield
    except ShardctlError as error:
        # From none: pytest would show the error that it is made of, too.
        raise pytest.fail.Exception(fleet.told(error), pytrace=False) from None


def _number(config: pytest.Config, option: str) -> int:
    text = str(config.getini(option))
    if not text.isdecimal() or int(text) < 1:
        pytest.fail(f"{option}: {text!r} is not a number from 1", pytrace=False)
    return int(text)
