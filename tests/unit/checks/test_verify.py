"""What `verify` refuses before it contacts a node."""

from __future__ import annotations

from shardctl.checks.verify import scope
from tests.fixtures.fleets.facts import healthy
from tests.fixtures.refusals import raises_code


def test_an_unknown_check_is_bad_usage() -> None:
    with raises_code("check_not_found"):
        scope(healthy().topology, ["maps"], deep=False)
