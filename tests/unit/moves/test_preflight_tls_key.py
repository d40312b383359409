"""What preflight judges of the key with which a clone would begin TLS."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardctl.moves.preflight.tls import OfSource, Tls
from shardctl.moves.preflight.tls_key import Key
from tests.fixtures.moves.facts import C, MoveFacts, fit

FINE = Key("/etc/key", mode=0o600, owner=26, user=26, fits=True)


def having(key: Key | None) -> MoveFacts:
    seen = fit()
    seen.source(tls=OfSource({"ssl": "on", "ssl_passphrase_command": ""}, frozenset()))
    seen.target(tls=Tls(on=True, key="/etc/key"), key=key)
    return seen


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"mode": 0o644}, "has mode 0644, and PostgreSQL takes 0600 at most"),
        ({"mode": 0o640}, "chmod 0600 /etc/key"),
        ({"mode": 0o644, "owner": 0}, "has mode 0644, and PostgreSQL takes 0640 at most"),
        ({"owner": 1000}, "belongs neither to the user who runs its server nor to root"),
        ({"encrypted": True, "fits": None}, "has a passphrase, and there is no ssl_passphrase"),
        ({"fits": False}, "is not the key of its certificate"),
    ],
)
def test_a_key_that_the_server_does_not_take(changes: dict[str, object], told: str) -> None:
    said = having(replace(FINE, **changes)).only("tls_key")  # type: ignore[arg-type]  # cases give them
    assert said.startswith("node c: ssl_key_file = /etc/key")
    assert told in said


def test_a_key_that_the_server_takes() -> None:
    assert having(FINE).refused() == {}
    assert having(replace(FINE, mode=0o400)).refused() == {}
    assert having(replace(FINE, mode=0o640, owner=0)).refused() == {}
    seen = having(replace(FINE, encrypted=True, fits=None))
    seen.node(C, settings={"SSL_passphrase_command": "cat /etc/secret"})
    assert seen.refused() == {}


def test_what_could_not_be_looked_at_is_noted() -> None:
    assert "the key of node c" not in having(FINE).notes()
    assert "not looked at the key of node c: its host has no stat" in having(None).notes()
    seen = having(replace(FINE, fits=None))
    assert "not looked whether the key of node c is that of its cert" in seen.notes()
