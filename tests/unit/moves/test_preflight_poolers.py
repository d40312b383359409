"""Poolers that would let clients down during a cutover, by what was seen of them."""

from __future__ import annotations

import dataclasses

import pytest

from shardctl.moves.preflight import poolers
from shardctl.pgbouncer import faults
from shardctl.topology.model import PoolerName
from tests.fixtures.moves.facts import P1, pooled


@pytest.mark.parametrize("key", ["query_wait_timeout", "client_login_timeout"])
def test_clients_that_would_not_be_let_wait(key: str) -> None:
    seen = pooled()
    seen.configure(**{key: "9"})
    told = seen.only(key)
    assert f"{key} is 9 s: clients would get errors before a cutover of 5 s" in told
    assert "set it to 10 or more (0: no limit)" in told
    seen.choose(max_pause_s=3)
    assert seen.refused() == {}
    seen.choose(max_pause_s=30)
    seen.configure(**{key: "0"})
    assert seen.refused() == {}


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


def test_several_poolers_are_told_each_by_name() -> None:
    seen = pooled()
    p2 = PoolerName("p2")
    other = dataclasses.replace(seen.topology.poolers[P1], name=p2)
    seen.topology = dataclasses.replace(seen.topology, poolers={**seen.topology.poolers, p2: other})
    seen.found[poolers.look].append(
        dataclasses.replace(seen.looked, pooler=other, lacking=("awk",))
    )
    seen.alias("shard2", paused=True)
    told = seen.refused()
    assert "pooler p1: aliases are already paused" in told["paused"]
    assert "pooler p2: " in told["guard_programs"]


def test_a_guard_that_could_not_log_in() -> None:
    seen = pooled()
    seen.looked.unasked = "it could not query node a: fe_sendauth: no password supplied"
    told = seen.only("guard_login")
    assert "pooler p1: a guard on its host could not log in to the target: " in told
    assert "no password supplied" in told
    assert "add both to ~/.pgpass" in told
