"""docs/howto/upgrade-postgresql.md, command by command, on servers of both versions."""

from __future__ import annotations

import pytest

from tests.bench import upgrade

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(900)]


@pytest.mark.parametrize("clients", ["shard", "router"])
def test_the_page_upgrades_a_fleet_under_load(clients: str) -> None:
    one, found, _ = upgrade.upgraded(clients)
    flaws = ("lost", "duplicates", "misplaced", "astray", "stale", "unserved", "errors")
    assert {flaw: found[flaw] for flaw in flaws if found[flaw]} == {}
    assert found["acknowledged"]["inserts"] > 0
    assert sorted(found["moved"]) == list(range(upgrade.SHARDS))
    assert sum(" is done; " in said for said in one.said) == 4
