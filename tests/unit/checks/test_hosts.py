"""What `hosts check` looks for is what a move will ask for."""

from __future__ import annotations

from shardctl.checks import host_tests
from shardctl.moves.preflight import poolers as preflight_poolers


def test_a_pooler_s_host_is_looked_through_for_what_its_guard_needs() -> None:
    assert set(host_tests.TOOLS_OF_GUARDS) == set(preflight_poolers.GUARD_NEEDS)
