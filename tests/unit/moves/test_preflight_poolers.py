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
    assert "until clients disconnect" in seen.only("session_pooling")
    seen.looked.problems = [faults.PoolingUnfit(P1, "pool_mode = session")]
    assert "with pool_mode = session" in seen.only("pooling_unfit")


def test_several_processes_at_one_port() -> None:
    seen = pooled()
    seen.configure(so_reuseport="1")
    assert "pooler p1: so_reuseport is on" in seen.only("so_reuseport")


def test_a_guard_that_could_not_log_in() -> None:
    seen = pooled()
    seen.looked.unasked = "it could not query node a: fe_sendauth: no password supplied"
    told = seen.only("guard_login")
    assert "pooler p1: a guard on its host could not log in to the target: " in told
    assert "no password supplied" in told
    assert "add both to ~/.pgpass" in told
