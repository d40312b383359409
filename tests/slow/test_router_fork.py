"""The router in processes that fork: children have connections of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures import forking, storms

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet


@pytest.fixture
def seeded(fleet_routed: Fleet) -> Fleet:
    """Give a fleet in which every user has rows."""
    storms.seed(
        lambda shard, text: fleet_routed.execute("a" if shard < 4 else "b", text), storms.Storm(0)
    )
    return fleet_routed


@pytest.mark.parametrize("case", forking.CASES)
def test_a_child_never_sees_its_parents_connections(seeded: Fleet, case: str) -> None:
    assert forking.run(case, seeded.write())["met"] == []
