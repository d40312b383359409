"""The keywords of libpq that a topology may use."""

from __future__ import annotations

from psycopg import pq

from shardctl.topology.spec import ELSEWHERE, KEYWORDS, SECRETS


def test_every_keyword_of_the_libpq_here_is_known() -> None:
    here = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    passwords = {"password", "sslpassword"}
    assert here <= KEYWORDS | SECRETS | set(ELSEWHERE) | passwords
    assert not KEYWORDS & (SECRETS | set(ELSEWHERE) | passwords)
