"""Why moves from or to a new server would be refused: facts in, refusals out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardctl.checks.clock import Offset
from shardctl.moves.preflight.server import Server
from shardctl.moves.preflight.structure import Locale
from shardctl.nodes import newcomer
from shardctl.nodes.newcomer import Newcomer, Peer
from shardctl.topology.model import NodeName
from tests.fixtures.servers.postgres import local_node, local_topology

A, C = NodeName("a"), NodeName("c")
SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "max_worker_processes": "8",
    "max_logical_replication_workers": "4",
}
SERVER = Server(150004, "15.4", False, 1, (), SETTINGS)
LOCALE = Locale("UTF8", "C.UTF-8", "C.UTF-8", "c", None)
PEER = Peer(SERVER, LOCALE, Offset(0.0, 0.001))
GOOD = Newcomer(PEER, (1, 0, 0), database=True, member=False)
TOPOLOGY = local_topology(Path("/srv"), local_node(Path("/srv"), "a", 5432, range(4)))


def codes(new: Newcomer, **peers: Peer) -> list[str]:
    known = {NodeName(name): one for name, one in (peers or {"a": PEER}).items()}
    return [error.code for error in newcomer.unfit(TOPOLOGY, C, new, known)]


def with_server(**changes: Any) -> Newcomer:
    return replace(GOOD, as_peer=replace(PEER, server=replace(SERVER, **changes)))


def with_settings(**settings: str) -> Newcomer:
    return with_server(settings={**SETTINGS, **settings})


def test_nothing_is_found_on_a_server_that_fits() -> None:
    assert codes(GOOD) == []
    assert list(newcomer.refusals(C, GOOD)) == []


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (with_server(version_number=140010, version="14.10"), "version"),
        (with_settings(wal_level="replica"), "wal_level"),
        (with_settings(max_wal_senders="1"), "senders"),
        (with_settings(max_replication_slots="0"), "slots"),
        (with_settings(max_worker_processes="1"), "workers"),
        (with_settings(max_logical_replication_workers="0"), "appliers"),
        (replace(GOOD, taken=(1, 0, 10)), "origins"),
        (replace(GOOD, as_peer=replace(PEER, clock=Offset(2.0, 0.1))), "clock_skew"),
        (replace(GOOD, settings=("lock_timeout=1s",)), "apply_settings"),
        (replace(GOOD, tables=("public.x",)), "database_not_empty"),
        (replace(GOOD, lacking=("pg_monitor",)), "rights"),
        (replace(GOOD, logins={A: "no password"}), "replication_login"),
        (replace(GOOD, back={A: "no password"}), "replication_login"),
    ],
)
def test_what_does_not_fit_is_named_with_what_to_do(new: Newcomer, code: str) -> None:
    assert codes(new)[0] == code
    [error, *_] = newcomer.unfit(TOPOLOGY, C, new, {A: PEER})
    assert error.message.startswith("node c: ")
    assert error.hint


def test_it_is_not_older_than_any_other_node() -> None:
    newer = replace(PEER, server=replace(SERVER, version_number=160002, version="16.2"))
    assert codes(GOOD, a=PEER, b=newer) == ["version"]


def test_its_database_sorts_as_the_others_do() -> None:
    spelt = replace(PEER, locale=replace(LOCALE, collate="C.utf8", ctype="C.utf8"))
    other = replace(PEER, locale=replace(LOCALE, collate="de_DE.UTF-8"))
    assert codes(GOOD, a=spelt) == []
    assert codes(GOOD, a=other, b=other) == ["locale"]
    assert codes(
        replace(GOOD, as_peer=replace(PEER, locale=replace(LOCALE, encoding="LATIN1")))
    ) == ["encoding"]


def test_its_clock_is_compared_with_the_others_too() -> None:
    ahead = replace(PEER, clock=Offset(0.4, 0.001))
    behind = replace(GOOD, as_peer=replace(PEER, clock=Offset(-0.4, 0.001)))
    assert codes(behind, a=PEER, b=ahead) == ["clock_skew"]
    far = replace(PEER, clock=Offset(3.0, 0.001))
    assert codes(GOOD, a=far) == []  # the other node's own error


def test_schemas_of_shards_are_never_accepted() -> None:
    [error] = newcomer.refusals(C, replace(GOOD, schemas=("shard1",)))
    assert error.code == "node_not_empty"


def test_tables_of_a_member_are_its_own() -> None:
    assert codes(replace(GOOD, member=True, tables=("public.x",))) == []
