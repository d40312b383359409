"""Fixtures for all tests."""

pytest_plugins = [
    "tests.fixtures.servers",
    "tests.fixtures.poolers",
    "tests.fixtures.guards",
    "tests.fixtures.fleets",
    "tests.fixtures.pooled",
    "tests.fixtures.verifying",
    "tests.fixtures.generators",
]
