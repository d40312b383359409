"""Shards of a test run: those of a throw-away fleet, which Django starts as it makes databases."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from django.db import NotSupportedError
from django.db.backends.postgresql import creation

from shardctl import testing
from shardctl.contrib.django import fleet

if TYPE_CHECKING:
    from shardctl.testing.fleet import ShardFleet

_running = ExitStack()


class DatabaseCreation(creation.DatabaseCreation):
    """All shards are one database to Django, which makes and destroys it once."""

    def test_db_signature(self) -> tuple[str, ...]:
        """Give the same for all shards."""
        return ("shardctl",)

    def create_test_db(self, *_: Any, **__: Any) -> str:
        """Start a fleet with the topology's shards and its migrations."""
        if fleet.in_tests is None:
            own = self.connection.settings_dict["OPTIONS"]["topology"]
            start(_running.enter_context(testing.running(own)))
        return str(self.connection.settings_dict["NAME"])

    def destroy_test_db(self, *_: Any, **__: Any) -> None:
        """Stop the fleet, and remove it."""
        start(None)
        _running.close()

    def set_as_test_mirror(self, primary_settings_dict: dict[str, Any]) -> None:
        """Leave each alias its shard."""

    def clone_test_db(self, *_: Any, **__: Any) -> None:
        """Refuse --parallel, whose processes would share the fleet."""
        raise NotSupportedError(
            "tests with shards cannot run with --parallel: use pytest-xdist, "
            "where each worker has a fleet of its own"
        )


def start(running: ShardFleet | None) -> None:
    """Let all shards be those of a running test fleet; None are the topology's own."""
    fleet.in_tests = running
    fleet.reopen(None if running is None else str(running.topology))
