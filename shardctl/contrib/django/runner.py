"""`TEST_RUNNER = "shardctl.contrib.django.ShardedRunner"`."""

from __future__ import annotations

from typing import Any

from django.test.runner import DiscoverRunner
from django.test.utils import iter_test_cases

from shardctl.contrib.django import fleet


class ShardedRunner(DiscoverRunner):
    """Django's runner, where tests with a database have all shards, too, of a test fleet."""

    def get_databases(self, suite: Any) -> Any:
        """Add the shards to the `databases` of test cases that have any."""
        shards = fleet.aliases()
        for test in iter_test_cases(suite):
            databases = getattr(test, "databases", None)
            if databases and databases != "__all__":
                type(test).databases = {*databases, *shards}
        return super().get_databases(suite)
