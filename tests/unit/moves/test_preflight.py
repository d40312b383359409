"""What preflight refuses, by what was seen: each case changes facts of a move that is fit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.checks.clock import Offset
from shardctl.errors import Refused
from shardctl.hosts.local import Local
from shardctl.moves import plan as planning
from shardctl.moves.plan import Options, TargetUnfit
from shardctl.moves.preflight import check as preflight
from shardctl.moves.preflight import (
    fleet,
    member,
    poolers,
    schemas,
    server,
    shards,
    table,
    target,
    trial,
)
from shardctl.moves.preflight.fleet import Peer
from shardctl.moves.preflight.poolers import Looked, PoolerFact
from shardctl.moves.preflight.schemas import Copied
from shardctl.moves.preflight.server import Server
from shardctl.moves.preflight.shards import Shards
from shardctl.moves.preflight.subject import Context
from shardctl.moves.preflight.target import Directory, Machine
from shardctl.moves.wal import Wal
from shardctl.pgbouncer import render
from shardctl.pgbouncer.console import Alias
from shardctl.postgres import binaries
from shardctl.postgres.binaries import Binaries
from shardctl.provision.observe import Said
from shardctl.state.observer import Asked
from shardctl.topology.model import NodeName, PoolerName, ShardId
from tests.fixtures.fleets.facts import POOLER
from tests.fixtures.refusals import by_code
from tests.fixtures.servers.postgres import local_node, local_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.topology.model import Topology

SRV = Path("/srv")
A, B, C = NodeName("a"), NodeName("b"), NodeName("c")
P1 = PoolerName("p1")
MB = 1024 * 1024
PROGRAMS = Binaries(Path("/usr/lib/postgresql/15/bin"), 15)
SETTINGS = {
    "data_directory": "/srv/a",
    "dynamic_library_path": "$libdir",
    "max_connections": "100",
    "max_locks_per_transaction": "64",
    "max_prepared_transactions": "4",
    "max_slot_wal_keep_size": "-1",
    "max_wal_senders": "10",
    "max_wal_size": "1024",
    "max_worker_processes": "8",
    "synchronous_standby_names": "",
}
POOLING = {
    "pool_mode": "transaction",
    "query_wait_timeout": "120",
    "client_login_timeout": "60",
}


@dataclass
class Facts:
    """What was seen for a move of shards from a to c, 2 and 3 by default; for a test to change."""

    topology: Topology
    found: dict[Any, Any]
    """What the looks gave, by look."""
    moved: Sequence[int]
    options: Options = field(default_factory=lambda: Options(max_pause_s=5, retain_s=60))
    method: str = planning.CLONE

    @property
    def context(self) -> Context:
        made = planning.make(self.topology, self.moved, C, 1, self.options)
        plan = replace(made, method=self.method)
        return Context(self.topology, plan, "test", dict(self.found))

    def refused(self) -> dict[str, str]:
        """Judge as preflight does; give what is told, hints and all, by the refusals' codes."""
        return by_code(preflight.judge(self.context))

    def notes(self) -> str:
        said = preflight.judge(self.context)
        return "\n".join(one for one in said if isinstance(one, str))


def fit(owned: int = 4, moved: Sequence[int] = (2, 3)) -> Facts:
    """Give facts of a fleet without poolers, about which preflight refuses nothing.

    `owned` is how many shards node a has.
    """
    own = ((A, 5432, range(owned)), (B, 5433, range(owned, owned + 4)), (C, 5434, range(0)))
    topology = local_topology(
        SRV, *(local_node(SRV, *one, data_directory=SRV / one[0], settings={}) for one in own)
    )
    known = Said(1, topology.owners(), ())
    a = Peer(known, {topology.schema(ShardId(shard)) for shard in moved})
    found: dict[Any, Any] = {one.look: {} for one in table.CHECKS}
    found |= {
        fleet.look: Asked({A: a, B: Peer(known, set())}, {}, frozenset()),
        poolers.look: [],
        server.look: Server(150_020, "15.20", False, 20 * MB, SETTINGS),
        server.look_for_patroni: None,
        shards.look_for_transactions: [],
        target.clock_of_source: Offset(0.0, 0.0),
        shards.look: Shards({f"shard{n}": 8192 for n in range(4)}),
        schemas.look_at_copied: Copied({}, {}, {}),
        schemas.look_at_collations: [],
        shards.look_at_wal: Wal(free_bytes=2**40, unknown=""),
        target.look: Machine(Local()),
        target.programs: PROGRAMS,
        target.look_at_directory: Directory("absent", False, "/srv", free_bytes=2**40, holds=()),
        target.clock_of_target: Offset(0.0, 0.0),
        target.libc: None,
        trial.look: False,
        target.look_for_modules: True,
    }
    return Facts(topology, found, moved)


def pooled() -> Facts:
    """Give such facts with a pooler."""
    made = fit()
    made.topology = replace(made.topology, poolers={P1: POOLER})
    plan = made.context.plan
    offered = planning.offered(made.topology, POOLER)
    held = planning.paused(made.topology, plan, POOLER)
    aliases = {
        e.alias: Alias(e.alias, e.host, e.port, e.dbname, paused=False, disabled=False)
        for e in render.entries(made.topology, POOLER)
    }
    fact = PoolerFact(P1, held, offered, clients=0)
    made.found[poolers.look] = [Looked(POOLER, fact=fact, offered=aliases, config=POOLING)]
    return made


def streamed() -> Facts:
    """Give facts about which preflight of a streamed move refuses nothing."""
    made = fit()
    made.method = planning.STREAM
    seen = made.found
    seen[fleet.look].values[C] = seen[fleet.look].values[B]
    seen |= {
        server.look_at_target: seen[server.look],
        member.look_at_disk: 2**40,
        member.try_login: False,
        member.find_programs: PROGRAMS,
    }
    seen |= {one.look_at_target: {} for one in table.CHECKS}
    return made


Changes = dict[str, Any]

FEW_LOCKS = {
    "max_connections": "20", "max_locks_per_transaction": "10", "max_prepared_transactions": "0",
}  # fmt: skip
(STANDBYS,) = [one.look for one in table.CHECKS if one.name == "standbys"]
REPLICA: Changes = {"found": {STANDBYS: {"standbys": ["replica (127.0.0.1)"]}}}
SOME = Wal(free_bytes=10_000 * MB, unknown="")
LITTLE = {"found": {shards.look_at_wal: SOME}}
UNKNOWN = {
    "found": {shards.look_at_wal: replace(SOME, free_bytes=None, unknown="no route to host")}
}


def placed(kind: str, **more: Any) -> Changes:
    return {"place": {"kind": kind, **more}}


LOOKS = {
    "server": server.look, "member": server.look_at_target, "shards": shards.look,
    "place": target.look_at_directory, "machine": target.look,
}  # fmt: skip


def changed(seen: Facts, changes: Changes) -> Facts:
    """Change options, node c, the pooler, a node's peer, what looks gave, or fields of that."""
    for name, given in changes.items():
        if name == "found":
            seen.found |= given
        elif name == "choose":
            seen.options = replace(seen.options, **given)
        elif name == "node":
            node = replace(seen.topology.nodes[C], **given)
            seen.topology = replace(seen.topology, nodes={**seen.topology.nodes, C: node})
        elif name == "pooler":
            seen.found[poolers.look] = [replace(seen.found[poolers.look][0], **given)]
        elif name == "peer":
            peers = seen.found[fleet.look].values
            peers[C] = peers[C]._replace(**given)
        else:
            there = seen.found[LOOKS[name]]
            merged = {f: there.settings | v if f == "settings" else v for f, v in given.items()}
            seen.found[LOOKS[name]] = replace(there, **merged)
    return seen


many_shards = partial(fit, owned=200, moved=range(180))
CLONED: list[tuple[str, Changes]] = [
    ("standbys", REPLICA),
    ("", {"found": {STANDBYS: {"standbys_ignored": ["replica (127.0.0.1)"]}}}),
    ("patroni_failover", {"found": {server.look_for_patroni: False}}),
    ("standby", {"server": {"in_recovery": True}}),
    ("wal_room", LITTLE | {"choose": {"max_wal_bytes": 10_001 * MB}}),
    ("", LITTLE | {"choose": {"max_wal_bytes": 10_000 * MB}}),
    ("wal_room_unknown", UNKNOWN),
    ("", UNKNOWN | {"choose": {"max_wal_bytes": 64 * MB}}),
    ("max_rate", {"choose": {"max_rate": 2 << 30}}),
    ("rights", {"found": {table.RIGHTS.look: {"rights": ["pg_read_server_files"]}}}),
    ("", placed("empty", seen="/srv/c")),
    ("directory_not_empty", placed("other", holds=("photo.jpg",))),
    ("directory_unfit", placed("file")),
    ("directory_closed", placed("closed", seen="/srv") | {"machine": {"account": "postgres"}}),
    ("leftover_clone", placed("absent", leftover=True)),
    ("disk", placed("absent", free_bytes=8 * MB, seen="/srv/small")),
    ("settings", {"node": {"settings": {"max_connections": "50"}}}),
    ("lock_table", {"server": {"settings": FEW_LOCKS | {"max_locks_per_transaction": "0"}}}),
]  # fmt: skip
POOLED: list[tuple[str, Changes]] = [
    ("session_pooling", {"pooler": {"config": POOLING | {"pool_mode": "session"}}}),
    ("pooling_unfit", {"pooler": {"problems": [Refused("pooling_unfit", "", hint="transaction")]}}),
    ("so_reuseport", {"pooler": {"config": POOLING | {"so_reuseport": "1"}}}),
]
TWO_GB = {"shards": {"sizes": {"shard2": 1000 * MB, "shard3": 1000 * MB}}}


STREAMED: list[tuple[str, Changes]] = [
    ("too_old", {"server": {"version_number": 140_020}}),
    ("lock_table", {"shards": {"moved": 100_000}}),
    ("schema_in_the_way", {"peer": {"live": {"shard2"}}}),
    ("no_streams", {"peer": {"said": Said(None, {}, ())}}),
    ("target_standby", {"member": {"in_recovery": True}}),
    ("version", {"server": {"version_number": 180_004}}),
    ("clock_skew", {"found": {target.clock_of_target: Offset(0.9, 0.01)}}),
    ("rights", {"found": {table.RIGHTS.look_at_target: {"rights": ["pg_create_subscription"]}}}),
    ("disk", TWO_GB | {"found": {member.look_at_disk: 3000 * MB}}),
    ("", TWO_GB | {"found": {member.look_at_disk: 3224 * MB}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "code", "changes"),
    [
        (make, code, changes)
        for make, cases in ((fit, CLONED), (pooled, POOLED), (streamed, STREAMED))
        for code, changes in [("", {}), *cases]
    ]
    + [(many_shards, "lock_table", {"server": {"settings": FEW_LOCKS}})],
)
def test_a_fact_is_refused_by_its_code_or_not_at_all(
    make: Any, code: str, changes: Changes
) -> None:
    assert set(changed(make(), changes).refused()) == ({code} if code else set())


@pytest.mark.parametrize(
    ("make", "changes", "named"),
    [
        (fit, {"found": {STANDBYS: {"standbys_ignored": ["replica"]}}}, "replica"),
        (fit, {"found": {server.look_for_patroni: True}}, "patronictl"),
        (fit, {"found": {target.look_for_modules: False}}, "extensions' libraries"),
        (streamed, {"found": {member.try_login: True}}, "pg_subscription"),
        (pooled, {"pooler": {"config": POOLING | {"max_client_conn": "99"}}}, "max_client_conn"),
    ],
)  # fmt: skip
def test_what_is_not_refused_is_noted(make: Any, changes: Changes, named: str) -> None:
    assert named not in make().notes()
    seen = changed(make(), changes)
    assert seen.refused() == {}
    assert named in seen.notes()


def test_a_c_library_that_sorts_otherwise_is_refused_where_a_collation_is_its_own() -> None:
    seen = fit()
    target.libc(seen.context)
    seen.found[schemas.look_at_collations] = [("swiss", "1")]
    with pytest.raises(TargetUnfit, match=r"swiss \(1\)") as caught:
        target.libc(seen.context)
    assert caught.value.code == "libc"


def test_libraries_that_the_targets_host_lacks_are_refused() -> None:
    seen = fit()
    programs = seen.found[target.programs] = binaries.find(None, account=None)
    assert programs.major
    modules = {"$libdir/none": "extension none", "plpgsql": "f"}
    seen.found[schemas.look_at_copied] = Copied({}, {}, modules)
    with pytest.raises(TargetUnfit, match=r"\$libdir/none \(extension none\)") as caught:
        target.look_for_modules(seen.context)
    assert caught.value.code == "extension_libraries"


@pytest.mark.parametrize("one", table.CHECKS, ids=lambda one: one.name)
def test_everything_that_the_table_says_can_be_answered(one: table.Check) -> None:
    assert one.said.keys() <= {"any", "clone", "stream"}
    assert (len(one.asked), one.at) in ((1, "source"), (1, "target"), (1, "each"), (2, "both"))
    keys = {key for of_method in one.said.values() for key in of_method}
    if one.at == "both":
        keys = {key.rpartition("_")[0] for key in keys}
    text = "".join(query.as_string(None) for query in one.asked)
    assert {key for key in keys if f"'{key}'" not in text} == set()
