"""Shards of a test run: those of a throw-away fleet, which Django starts as it makes databases."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from django.db import NotSupportedError
from django.db.backends.postgresql import creation

from shardctl import testing
from shardctl.contrib.django import fleet

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
            fleet.use(_running.enter_context(testing.running(own)))
        return str(self.connection.settings_dict["NAME"])

    def destroy_test_db(self, *_: Any, **__: Any) -> None:
        """Stop the fleet, and remove it."""
        fleet.use(None)
        _running.close()

    def clone_test_db(self, *_: Any, **__: Any) -> None:
        """Refuse --parallel, whose processes would share the fleet."""
        raise NotSupportedError(
            "tests with shards cannot run with --parallel: use pytest-xdist, "
            "where each worker has a fleet of its own"
        )
