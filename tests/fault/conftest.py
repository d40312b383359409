"""Fixtures for what breaks on purpose."""

from tests.fixtures.moving import moving, moving_servers

__all__ = ["moving", "moving_servers"]
