"""Fixtures for fleets whose shards are moved, or seem to have been."""

from tests.fixtures.moved import many, moved, moved_servers
from tests.fixtures.pruning import pruned, pruned_fleet, small, small_fleet

__all__ = ["many", "moved", "moved_servers", "pruned", "pruned_fleet", "small", "small_fleet"]
