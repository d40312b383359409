"""Roles, databases and servers whose defaults differ from PostgreSQL's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.spares import MovedFleet

ODD = {
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "statement_timeout": "1ms",
    "search_path": "nowhere",
}


@pytest.fixture
def odd(fleet_spares: MovedFleet) -> Iterator[MovedFleet]:
    """Give a fleet whose operator's role has odd defaults on every node."""
    for server in fleet_spares.servers.values():
        with server.connect() as session:
            for name, value in ODD.items():
                session.execute(f"ALTER ROLE postgres SET {name} = '{value}'".encode())
    yield fleet_spares
    for server in fleet_spares.servers.values():
        with server.connect(options="-c default_transaction_read_only=off") as session:
            session.execute("SET statement_timeout = 0; ALTER ROLE postgres RESET ALL")


def test_a_move_does_not_depend_on_the_defaults_of_the_operators_role(odd: MovedFleet) -> None:
    assert odd.here("init", "--yes").returncode == 0
    done = odd.here("move-shards", "2-3", "--to", "c", "--yes", "--retain", "0s")
    assert done.returncode == 0, done.stderr
    assert odd.owned()["c"] == "2-3"
    [move] = odd.listed()
    assert move["state"] == "done"
    done = odd.here("prune", "--yes")
    assert done.returncode == 0, done.stderr
    assert odd.problems() == []
