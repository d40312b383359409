"""Where the clone would listen, by what its host and this machine make of names."""

from __future__ import annotations

import ipaddress

import pytest

from shardctl.moves.preflight.address import Listens
from tests.fixtures.moves.facts import C, MoveFacts, fit

DEBIANS, OWN = ipaddress.ip_address("127.0.1.1"), ipaddress.ip_address("10.0.0.2")


def listening(*resolved: object, bound: tuple[object, ...], is_far: bool = True) -> MoveFacts:
    seen = fit()
    seen.node(C, host="db2")
    found = Listens(resolved=frozenset(resolved), bound=frozenset(bound), is_far=is_far)  # type: ignore[arg-type]  # addresses
    seen.target(listens=found)
    return seen


def test_a_name_that_its_own_host_has_on_the_loopback_interface() -> None:
    told = listening(DEBIANS, bound=(DEBIANS,)).only("listen_addresses")
    assert "127.0.1.1" in told
    assert "/etc/hosts" in told
    assert "listen_addresses" in told
    assert listening(DEBIANS, bound=(DEBIANS,), is_far=False).refused() == {}
    assert listening(DEBIANS, OWN, bound=(DEBIANS, OWN)).refused() == {}


@pytest.mark.parametrize("is_far", [True, False])
def test_an_address_of_another_machine(is_far: bool) -> None:
    told = listening(OWN, bound=(), is_far=is_far).only("listen_addresses")
    assert "10.0.0.2" in told


def test_what_could_not_be_looked_at_is_noted() -> None:
    seen = fit()
    seen.target(listens=None)
    assert seen.refused() == {}
    assert "node c: not checked: the addresses it would listen on" in seen.notes()
