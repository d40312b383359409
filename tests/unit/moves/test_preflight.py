"""What preflight refuses, by what was seen: each case changes facts of a move that is fit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.checks.clock import Offset
from shardctl.hosts.local import Local
from shardctl.moves import plan as planning
from shardctl.moves.plan import Options
from shardctl.moves.preflight import check as preflight
from shardctl.moves.preflight import (
    directory,
    fleet,
    managers,
    member,
    poolers,
    replication,
    schemas,
    server,
    shards,
    subscriber,
    table,
    target,
    trial,
    wal,
)
from shardctl.moves.preflight.directory import Directory
from shardctl.moves.preflight.fleet import Fleet, Peer
from shardctl.moves.preflight.poolers import Looked, PoolerFact
from shardctl.moves.preflight.replication import Replication
from shardctl.moves.preflight.schemas import Contents, Version
from shardctl.moves.preflight.server import Server
from shardctl.moves.preflight.shards import Shards
from shardctl.moves.preflight.subject import Context
from shardctl.moves.preflight.target import Debian, Machine
from shardctl.moves.wal import Wal
from shardctl.pgbouncer import faults, render
from shardctl.pgbouncer.console import Alias
from shardctl.postgres.binaries import Binaries
from shardctl.topology.model import Control, NodeName, PoolerName, ShardId
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
    "archive_mode": "off",
    "data_directory": "/srv/a",
    "dynamic_library_path": "$libdir",
    "max_connections": "100",
    "max_locks_per_transaction": "64",
    "max_prepared_transactions": "4",
    "max_replication_slots": "10",
    "max_slot_wal_keep_size": "-1",
    "max_wal_senders": "10",
    "max_wal_size": "1024",
    "max_worker_processes": "8",
    "synchronous_standby_names": "",
    "wal_level": "replica",
}
OF_STREAMS = {
    "max_active_replication_origins": "10",
    "max_logical_replication_workers": "4",
    "wal_level": "logical",
    "wal_retrieve_retry_interval": "5000",
}
POOLING = {
    "pool_mode": "transaction",
    "query_wait_timeout": "120",
    "client_login_timeout": "60",
    "server_login_retry": "1",
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
        return "\n".join(preflight.notes(self.context))


def fit(owned: int = 4, moved: Sequence[int] = (2, 3)) -> Facts:
    """Give facts of a fleet without poolers, about which preflight refuses nothing.

    `owned` is how many shards node a has.
    """
    own = ((A, 5432, range(owned)), (B, 5433, range(owned, owned + 4)), (C, 5434, range(0)))
    topology = local_topology(
        SRV, *(local_node(SRV, *one, data_directory=SRV / one[0], settings={}) for one in own)
    )
    a = Peer(is_member=True, live=tuple(topology.schema(ShardId(shard)) for shard in moved))
    found: dict[Any, Any] = {one.look: {} for one in table.CHECKS}
    found |= {
        fleet.look: Fleet({A: a, B: replace(a, live=())}, ()),
        poolers.look: [],
        server.look: Server(150_020, "15.20", False, 20 * MB, SETTINGS),
        server.look_for_rights: (),
        replication.look: Replication(senders=0, slots=0, standbys=()),
        shards.look_for_transactions: (),
        target.clock_of_source: Offset(0.0, 0.0),
        shards.look: Shards({f"shard{n}": 8192 for n in range(4)}),
        schemas.look: Contents(),
        managers.look: None,
        subscriber.look_at_triggers: subscriber.Events(),
        target.look_for_functions: {},
        wal.look: Wal(free_bytes=2**40, unknown=""),
        target.look: Machine(Local()),
        target.programs: PROGRAMS,
        directory.look: Directory("absent", False, "/srv", free_bytes=2**40, holds=()),
        target.look_for_debian: None,
        target.clock_of_target: Offset(0.0, 0.0),
        target.libc: ("glibc 2.36", "glibc 2.36"),
        trial.look: False,
        target.look_for_modules: [],
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
    seen[server.look] = replace(seen[server.look], settings=SETTINGS | OF_STREAMS)
    peers = seen[fleet.look].peers
    seen[fleet.look] = Fleet({**peers, C: peers[B]}, ())
    seen |= {
        fleet.look_at_file: [],
        replication.look_for_timeout: 0,
        replication.look_for_standbys: (),
        table.look_at_expressions: table.Expressions(),
        member.look: seen[server.look],
        member.measure: 0.1,
        member.clock_of: Offset(0.0, 0.0),
        subscriber.look_at_triggers_of_target: subscriber.Events(),
        member.role_settings_of_source: {},
        member.role_settings: {},
        member.look_at_disk: 2**40,
        subscriber.look: subscriber.Subscriber(),
        subscriber.try_login: subscriber.Login(None, own=False),
        subscriber.look_for_maker: subscriber.Maker(may_make=True, may_connect=True),
        member.find_programs: PROGRAMS,
    }
    seen |= {one.look_at_target: {} for one in table.CHECKS}
    return made


Changes = dict[str, Any]

CONTROL = Control(start="sudo -n pg_ctlcluster 15 c start", stop=None, reload=None, status=None)
OF_DEBIAN = {"config_file": "/etc/postgresql/15/main/postgresql.conf"}
MODULES = {"$libdir/pg_trgm": "extension pg_trgm", "/srv/own": "function own(oid)"}
FEW_LOCKS = {
    "max_connections": "20", "max_locks_per_transaction": "10", "max_prepared_transactions": "0",
}  # fmt: skip
GERMAN = (Version("german", "153.120", "153.120"),)
SOME = Wal(free_bytes=10_000 * MB, unknown="")
LITTLE = {"found": {wal.look: SOME}}
UNKNOWN = {"found": {wal.look: replace(SOME, free_bytes=None, unknown="no route to host")}}


def placed(kind: str, **more: Any) -> Changes:
    return {"place": {"kind": kind, **more}}


def on_debian(cluster: str | None, start: str | None = CONTROL.start) -> Changes:
    changes: Changes = {"found": {target.look_for_debian: Debian(cluster)}}
    return changes | ({"node": {"control": replace(CONTROL, start=start)}} if start else {})


LOOKS = {
    "server": server.look, "member": member.look, "replication": replication.look,
    "shards": shards.look, "place": directory.look, "machine": target.look,
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
            peers = seen.found[fleet.look].peers
            seen.found[fleet.look] = Fleet({**peers, C: replace(peers[C], **given)}, ())
        else:
            there = seen.found[LOOKS[name]]
            merged = {f: there.settings | v if f == "settings" else v for f, v in given.items()}
            seen.found[LOOKS[name]] = replace(there, **merged)
    return seen


many_shards = partial(fit, owned=200, moved=range(180))
CLONED: list[tuple[str, Changes]] = [
    ("debian_cluster", on_debian("15 photos", start=None)),
    ("", on_debian("15 c")),
    ("", on_debian(None, start=None)),
    ("debian_unlisted", on_debian(None, start=None) | {"server": {"settings": OF_DEBIAN}}),
    ("", {"server": {"settings": OF_DEBIAN}}),
    ("debian_other", on_debian("15 photos")),
    ("extension_libraries", {"found": {target.look_for_functions: MODULES,
                                       target.look_for_modules: list(MODULES)}}),
    ("synchronous_clone", {"server": {"settings": {"synchronous_standby_names": "1 (other, C)"}}}),
    ("", {"server": {"settings": {"synchronous_standby_names": "FIRST 2 (s1, s2)"}}}),
    ("standbys", {"replication": {"standbys": (("replica", "127.0.0.1"),)}}),
    ("", {"replication": {"standbys": (("r", "127.0.0.1"),)}, "choose": {"ignore_standby": True}}),
    ("standby", {"server": {"in_recovery": True}}),
    ("wal_level", {"server": {"settings": {"wal_level": "minimal", "max_wal_senders": "0"}}}),
    ("wal_room", LITTLE | {"choose": {"max_wal_bytes": 10_001 * MB}}),
    ("", LITTLE | {"choose": {"max_wal_bytes": 10_000 * MB}}),
    ("wal_room_unknown", UNKNOWN),
    ("", UNKNOWN | {"choose": {"max_wal_bytes": 64 * MB}}),
    ("max_rate", {"choose": {"max_rate": "2G"}}),
    ("rights", {"found": {server.look_for_rights: ("pg_read_server_files",)}}),
    ("", placed("empty", seen="/srv/c")),
    ("directory_not_empty", placed("other", holds=("photo.jpg",))),
    ("directory_unfit", placed("file")),
    ("directory_closed", placed("closed", seen="/srv") | {"machine": {"account": "postgres"}}),
    ("leftover_clone", placed("absent", leftover=True)),
    ("disk", placed("absent", free_bytes=8 * MB, seen="/srv/small")),
    ("settings", {"node": {"settings": {"max_connections": "50"}}}),
    ("lock_table", {"server": {"settings": FEW_LOCKS | {"max_locks_per_transaction": "0"}}}),
    ("libc", {"found": {target.libc: ("glibc 2.36", "2.17"),
                        schemas.look: Contents(collations=GERMAN)}}),
]  # fmt: skip
POOLED: list[tuple[str, Changes]] = [
    ("session_pooling", {"pooler": {"config": POOLING | {"pool_mode": "session"}}}),
    ("pooling_unfit", {"pooler": {"problems": [faults.PoolingUnfit(P1, "pool_mode = session")]}}),
    ("so_reuseport", {"pooler": {"config": POOLING | {"so_reuseport": "1"}}}),
    ("guard_login", {"pooler": {"unasked": "it could not query node a: no password supplied"}}),
]
# 100 s at the rate of COPY_RATE
LARGE = {"shards": {"sizes": {"shard2": 200 * MB * 100, "shard3": 0}}}
TWO_GB = {"shards": {"sizes": {"shard2": 1000 * MB, "shard3": 1000 * MB}}}
OWN_ROLE = {subscriber.try_login: subscriber.Login(None, own=True)}


def subscribing(**used: Any) -> Changes:
    return {"found": {subscriber.look: subscriber.Subscriber(**used)}}


def made_by(**may: bool) -> Changes:
    maker = subscriber.Maker(**{"may_make": True, "may_connect": True, **may})
    return {"found": OWN_ROLE | {subscriber.look_for_maker: maker}}


STREAMED: list[tuple[str, Changes]] = [
    ("wal_level", {"server": {"settings": {"wal_level": "replica"}}}),
    ("replication_slots", {"server": {"settings": {"max_replication_slots": "0"}}}),
    ("wal_senders", {"server": {"settings": {"max_wal_senders": "1"}}}),
    *(
        (code, {"member": {"version_number": 180_004}, "server": {"version_number": number}})
        for code, number in (("decoding_broken", 170_005), ("too_old", 140_020))
    ),
    ("slot_timeout", LARGE | {"found": {replication.look_for_timeout: 299}}),
    ("", LARGE | {"found": {replication.look_for_timeout: 300}}),
    ("", {"found": {replication.look_for_standbys: ("of_standby",)}}),
    ("lock_table", {"shards": {"tables": 100_000}}),
    ("schema_in_the_way", {"peer": {"live": ("shard2",)}}),
    ("no_streams", {"peer": {"is_member": False}}),
    ("target_standby", {"member": {"in_recovery": True}}),
    ("version", {"server": {"version_number": 180_004}}),
    ("clock_skew", {"found": {member.clock_of: Offset(0.9, 0.01)}}),
    ("workers", subscribing(workers=2) | {"member": {"settings": {"max_worker_processes": "2"}}}),
    ("appliers", subscribing(appliers=1)
     | {"member": {"settings": {"max_logical_replication_workers": "1"}}}),
    ("origins", subscribing(origins=1) | {"member": {
        "version_number": 180_004, "settings": {"max_active_replication_origins": "1"}}}),
    ("rights", subscribing(lacking=("the right to create subscriptions",))),
    ("apply_settings", subscribing(settings=("lock_timeout=2s", "array_nulls=off"))),
    ("disk", TWO_GB | {"found": {member.look_at_disk: 3000 * MB}}),
    ("", TWO_GB | {"found": {member.look_at_disk: 3224 * MB}}),
    ("", {"found": OWN_ROLE}),
    ("replication_login", {"found": {subscriber.try_login: subscriber.Login("none", own=True)}}),
    ("stream_role", made_by(may_make=False)),
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
        (fit, {"replication": {"standbys": (("replica", "127.0.0.1"),)},
               "choose": {"ignore_standby": True}}, "replica"),
        (fit, {"found": {trial.try_replication: "no-psql"}}, "no-psql"),
        (fit, {"node": {"control": CONTROL}}, "control.start"),
        (pooled, {"pooler": {"config": POOLING | {"max_client_conn": "99"}}}, "max_client_conn"),
        (streamed, {"found": {replication.look_for_standbys: ("of_standby",)}}, "of_standby"),
    ],
)  # fmt: skip
def test_what_is_not_refused_is_noted(make: Any, changes: Changes, named: str) -> None:
    assert named not in make().notes()
    seen = changed(make(), changes)
    assert seen.refused() == {}
    assert named in seen.notes()


def test_libraries_that_could_not_be_looked_for_are_noted_and_not_refused() -> None:
    seen = fit()
    before = seen.notes()
    seen.found[target.look_for_modules] = None
    assert seen.refused() == {}
    assert len(seen.notes()) > len(before)
