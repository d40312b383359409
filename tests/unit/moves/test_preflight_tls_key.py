"""What preflight judges of the key with which a clone would begin TLS."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardctl.moves.preflight.tls import Key, OfSource, Tls
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
        ({"mode": 0o644}, "has mode 0644, but PostgreSQL accepts at most 0600"),
        ({"mode": 0o640}, "chmod 0600 /etc/key"),
        ({"mode": 0o644, "owner": 0}, "has mode 0644, but PostgreSQL accepts at most 0640"),
        ({"owner": 1000}, "belongs neither to the user who runs its server nor to root"),
        ({"encrypted": True, "fits": None}, "has a passphrase, but the node has no ssl_passphrase"),
        ({"fits": False}, "does not match its certificate"),
    ],
)
def test_a_key_that_the_server_does_not_take(changes: dict[str, object], told: str) -> None:
    said = having(replace(FINE, **changes)).only("tls_key")  # type: ignore[arg-type]  # cases give them
    assert said.startswith("node c: ssl_key_file: /etc/key ")
    assert told in said


def test_a_key_that_the_server_takes() -> None:
    assert having(FINE).refused() == {}
    assert having(replace(FINE, mode=0o400)).refused() == {}
    assert having(replace(FINE, mode=0o640, owner=0)).refused() == {}
    seen = having(replace(FINE, encrypted=True, fits=None))
    seen.node(C, settings={"SSL_passphrase_command": "cat /etc/secret"})
    assert seen.refused() == {}


def test_what_could_not_be_looked_at_is_noted() -> None:
    assert "TLS key" not in having(FINE).notes()
    assert "node c: not checked: its TLS key: its host has no stat" in having(None).notes()
    seen = having(replace(FINE, fits=None))
    assert "node c: not checked: whether its TLS key matches its cert" in seen.notes()
