"""Poolers that would let clients down during a cutover, by what was seen of them."""

from __future__ import annotations

from shardctl.pgbouncer import faults
from tests.fixtures.moves.facts import P1, pooled


def test_a_pooler_that_logins_could_fill_is_noted() -> None:
    seen = pooled()
    seen.configure(max_client_conn="1000")
    assert "max_client_conn" not in seen.notes()
    seen.configure(max_client_conn="99")
    assert "client connections are free (max_client_conn = 99)" in seen.notes()


def test_session_pooling_is_told_once() -> None:
    seen = pooled()
    seen.configure(pool_mode="session")
    seen.only("session_pooling")
    seen.looked.problems = [faults.PoolingUnfit(P1, "pool_mode = session")]
    assert "pool_mode" in seen.only("pooling_unfit")


def test_several_processes_at_one_port() -> None:
    seen = pooled()
    seen.configure(so_reuseport="1")
    assert "so_reuseport" in seen.only("so_reuseport")


def test_a_guard_that_could_not_log_in() -> None:
    seen = pooled()
    seen.looked.unasked = "it could not query node a: fe_sendauth: no password supplied"
    told = seen.only("guard_login")
    assert "/.pgpass" in told
