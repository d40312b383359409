"""What preflight judges of the TLS files with which a clone would begin."""

from __future__ import annotations

import dataclasses

import pytest

from shardctl.moves.preflight.rights import grants
from shardctl.moves.preflight.tls import OfSource, Tls
from shardctl.postgres import certificates
from tests.fixtures.moves.facts import C, MoveFacts, fit, pooled
from tests.fixtures.servers.certificates import Authority

AUTHORITY = Authority()
ON = {"ssl": "on", "ssl_cert_file": "server.crt", "ssl_key_file": "server.key"}


def shown(seen: MoveFacts, *names: str, days: int = 30, **changes: object) -> MoveFacts:
    """Let the clone show a copied certificate for these names to a shardctl that verifies."""
    issued = AUTHORITY.issue(*names, days=days)
    source = OfSource(ON, frozenset(ON), sslmode="verify-full")
    seen.source(tls=dataclasses.replace(source, **changes))  # type: ignore[arg-type]  # cases give them
    found = certificates.read(issued.certificate, AUTHORITY.pem)
    seen.target(tls=Tls(on=True, certificate=found, copied=True))
    return seen


def test_a_copied_certificate_is_to_be_for_the_target() -> None:
    assert set(shown(fit(), "db1", "10.0.0.1").refused()) == {"tls_name"}
    assert shown(fit(), "db1", "127.0.0.1").refused() == {}
    for mode in ("prefer", "require", "verify-ca"):
        seen = shown(fit(), "db1", sslmode=mode)
        assert seen.refused() == {}
        assert "127.0.0.1" in seen.notes()


def test_a_pooler_that_compares_names() -> None:
    seen = shown(pooled(), "127.0.0.1")
    seen.node(C, pooler_host="db3")
    assert seen.refused() == {}
    seen.configure(server_tls_sslmode="verify-full")
    assert set(seen.refused()) == {"tls_name"}


def test_a_certificate_of_another_authority_or_time_and_files_that_are_not_found() -> None:
    other = certificates.read(AUTHORITY.issue("127.0.0.1").certificate, Authority().pem)
    for tls, code in (
        (Tls(on=True, certificate=other), "tls_issuer"),
        (Tls(on=True, missing=(("ssl_key_file", "/etc/ssl/private/db.key"),)), "tls_files"),
        (Tls(on=True, broken="it is a letter"), "tls_files"),
        (Tls(), "tls_off"),
    ):
        seen = shown(fit(), "127.0.0.1")
        seen.target(tls=tls)
        assert set(seen.refused()) == {code}
    seen.source(tls=OfSource({"ssl": "off"}, frozenset()))
    assert seen.refused() == {}
    assert set(shown(fit(), "127.0.0.1", days=-1).refused()) == {"tls_expired"}
    assert shown(fit(), "127.0.0.1", days=-1, sslmode="require").refused() == {}


@pytest.mark.parametrize(
    ("names", "common", "host", "fits"),
    [
        (["db1.example.com"], "x", "DB1.example.com", True),
        (["*.example.com"], "x", "db1.example.com", True),
        (["*.example.com"], "x", "a.db1.example.com", False),
        (["*.example.com"], "x", "example.com", False),
        (["10.0.0.1"], "x", "10.0.0.1", True),
        (["::1"], "x", "0:0::1", True),
        (["10.0.0.1"], "db1", "db1", True),  # no name of that kind, so the common name counts
        (["db2"], "db1", "db1", False),
        ([], "db1", "db1", True),
        ([], "10.0.0.1", "10.0.0.1", True),
        (["10.0.0.2"], "10.0.0.1", "10.0.0.1", False),
    ],
)
def test_names_count_as_in_libpq(names: list[str], common: str, host: str, fits: bool) -> None:
    issued = AUTHORITY.issue(*names, common=common)
    assert certificates.read(issued.certificate).is_for(host) is fits


def test_a_chain_leads_to_an_authority() -> None:
    first = AUTHORITY.issue("db1")
    assert certificates.read(first.certificate, AUTHORITY.pem).trusted
    assert certificates.read(first.certificate, first.certificate).trusted
    assert certificates.read(first.certificate + AUTHORITY.pem, Authority().pem).trusted is False
    assert certificates.read(first.certificate).trusted is None
    with pytest.raises(ValueError, match="PEM"):
        certificates.read(b"a letter")


def test_a_refusal_of_rights_has_the_statements() -> None:
    assert grants("ops", ["SELECT on pg_file_settings", "CREATE on the database"])[:1] == [
        'GRANT SELECT ON pg_file_settings TO "ops"'
    ]
