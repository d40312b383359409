"""Fixtures for all tests."""

pytest_plugins = [
    "tests.fixtures.servers",
    "tests.fixtures.poolers",
    "tests.fixtures.fleets",
    "tests.fixtures.verifying",
    "tests.fixtures.generators",
]
