"""What preflight refuses, by what was seen: each case changes facts of a move that is fit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.checks.clock import Offset
from shardctl.moves.preflight import member, replication, server, subscriber
from shardctl.moves.preflight.schemas import Version
from shardctl.moves.preflight.target import Debian
from shardctl.moves.wal import Wal
from shardctl.pgbouncer import faults
from shardctl.topology.model import Control
from tests.fixtures.moves.facts import MB, P1, PLACE, C, fit, pooled, streamed

if TYPE_CHECKING:
    from tests.fixtures.moves.facts import MoveFacts

Changes = dict[str, Any]

CONTROL = Control(start="sudo -n pg_ctlcluster 15 c start", stop=None, reload=None, status=None)
OF_DEBIAN = {"config_file": "/etc/postgresql/15/main/postgresql.conf"}
MODULES = {"$libdir/pg_trgm": "extension pg_trgm", "/srv/own": "function own(oid)"}
FEW_LOCKS = {
    "max_connections": "20", "max_locks_per_transaction": "10", "max_prepared_transactions": "0",
}  # fmt: skip
GERMAN = (Version("german", "153.120", "153.120"),)
LITTLE = Wal(free_bytes=10_000 * MB, unknown="", keep_bytes=None)
UNKNOWN = replace(LITTLE, free_bytes=None, unknown="no route to host")


def placed(kind: str, **more: Any) -> Changes:
    return {"place": {"kind": kind, **more}}


def on_debian(cluster: str | None, start: str | None = CONTROL.start) -> Changes:
    changes: Changes = {"target": {"debian": Debian(cluster)}}
    return changes | ({"node": {"control": replace(CONTROL, start=start)}} if start else {})


def changed(seen: MoveFacts, changes: Changes) -> MoveFacts:
    """Change facts by the names of their methods, or what looks gave."""
    for name, given in changes.items():
        if name == "found":
            seen.found |= given
        elif name == "looked":
            for field, value in given.items():
                setattr(seen.looked, field, value)
        elif name in LOOKS:
            there = seen.found[LOOKS[name]]
            settings = {**there.settings, **given.get("settings", {})}
            seen.found[LOOKS[name]] = replace(there, **(given | {"settings": settings}))
        else:
            getattr(seen, name)(*((C,) if name in ("node", "peer") else ()), **given)
    return seen


LOOKS = {"member": member.look, "server": server.look}
many_shards = partial(fit, owned=200, moved=range(180))
CLONED: list[tuple[str, Changes]] = [
    ("debian_cluster", on_debian("15 photos", start=None)),
    ("", on_debian("15 c")),
    ("", on_debian(None, start=None)),
    ("debian_unlisted", on_debian(None, start=None) | {"source": {"settings": OF_DEBIAN}}),
    ("", {"source": {"settings": OF_DEBIAN}}),
    ("debian_other", on_debian("15 photos")),
    ("extension_libraries", {"source": {"modules": MODULES},
                             "target": {"modules_lacking": list(MODULES)}}),
    ("synchronous_clone", {"source": {"settings": {"synchronous_standby_names": "1 (other, C)"}}}),
    ("", {"source": {"settings": {"synchronous_standby_names": "FIRST 2 (s1, s2)"}}}),
    ("standbys", {"source": {"standbys": (("replica", "127.0.0.1"),)}}),
    ("", {"source": {"standbys": (("r", "127.0.0.1"),)}, "choose": {"ignore_standby": True}}),
    ("standby", {"source": {"in_recovery": True}}),
    ("wal_level", {"source": {"settings": {"wal_level": "minimal", "max_wal_senders": "0"}}}),
    ("wal_room", {"source": {"wal": LITTLE}, "choose": {"max_wal_bytes": 10_001 * MB}}),
    ("", {"source": {"wal": LITTLE}, "choose": {"max_wal_bytes": 10_000 * MB}}),
    ("wal_room_unknown", {"source": {"wal": UNKNOWN}}),
    ("", {"source": {"wal": UNKNOWN}, "choose": {"max_wal_bytes": 64 * MB}}),
    ("max_rate", {"choose": {"max_rate": "2G"}}),
    ("rights", {"source": {"lacking": ("pg_read_server_files",)}}),
    ("", placed("empty", seen=str(PLACE))),
    ("directory_not_empty", placed("other", holds=("photo.jpg",))),
    ("directory_unfit", placed("file")),
    ("directory_closed", placed("closed", seen="/srv") | {"target": {"account": "postgres"}}),
    ("leftover_clone", placed("absent", leftover=True)),
    ("disk", placed("absent", free_bytes=8 * MB, seen="/srv/small")),
    ("settings", {"node": {"settings": {"max_connections": "50"}}}),
    ("lock_table", {"source": {"settings": FEW_LOCKS | {"max_locks_per_transaction": "0"}}}),
    ("libc", {"target": {"libc": ("glibc 2.36", "2.17")}, "contents": {"collations": GERMAN}}),
]  # fmt: skip
POOLED: list[tuple[str, Changes]] = [
    ("session_pooling", {"configure": {"pool_mode": "session"}}),
    ("pooling_unfit", {"looked": {"problems": [faults.PoolingUnfit(P1, "pool_mode = session")]}}),
    ("so_reuseport", {"configure": {"so_reuseport": "1"}}),
    ("guard_login", {"looked": {"unasked": "it could not query node a: no password supplied"}}),
]
# 100 s at the rate of COPY_RATE
LARGE = {"sizes": {"shard2": 200 * MB * 100, "shard3": 0}}
TWO_GB = {"sizes": {"shard2": 1000 * MB, "shard3": 1000 * MB}}
OWN_ROLE = {subscriber.try_login: subscriber.Login(None, own=True)}


def subscribing(**used: Any) -> Changes:
    return {"found": {subscriber.look: subscriber.Subscriber(**used)}}


def made_by(**may: bool) -> Changes:
    maker = subscriber.Maker(**{"may_make": True, "may_connect": True, **may})
    return {"found": OWN_ROLE | {subscriber.look_for_maker: maker}}


STREAMED: list[tuple[str, Changes]] = [
    ("wal_level", {"source": {"settings": {"wal_level": "replica"}}}),
    ("replication_slots", {"source": {"settings": {"max_replication_slots": "0"}}}),
    ("wal_senders", {"source": {"settings": {"max_wal_senders": "1"}}}),
    *(
        (code, {"member": {"version_number": 180_004}, "server": {"version_number": number}})
        for code, number in (("decoding_broken", 170_005), ("too_old", 140_020))
    ),
    ("slot_timeout", {"source": LARGE, "found": {replication.look_for_timeout: 299}}),
    ("", {"source": LARGE, "found": {replication.look_for_timeout: 300}}),
    ("", {"found": {replication.look_for_standbys: ("of_standby",)}}),
    ("lock_table", {"source": {"tables": 100_000}}),
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
    ("rights_passed_on", subscribing(passed_on=("shard2.photos (by app)",))
     | {"member": {"version_number": 160_004}}),
    ("disk", {"source": TWO_GB, "found": {member.look_at_disk: 3000 * MB}}),
    ("", {"source": TWO_GB, "found": {member.look_at_disk: 3224 * MB}}),
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
    + [(many_shards, "lock_table", {"source": {"settings": FEW_LOCKS}})],
)
def test_a_fact_is_refused_by_its_code_or_not_at_all(
    make: Any, code: str, changes: Changes
) -> None:
    assert set(changed(make(), changes).refused()) == ({code} if code else set())


@pytest.mark.parametrize(
    ("make", "changes", "named"),
    [
        (fit, {"source": {"standbys": (("replica", "127.0.0.1"),)},
               "choose": {"ignore_standby": True}}, "replica"),
        (fit, {"target": {"login_untried": "no-psql"}}, "no-psql"),
        (fit, {"node": {"control": CONTROL}}, "control.start"),
        (pooled, {"configure": {"max_client_conn": "99"}}, "max_client_conn"),
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
    seen.target(modules_lacking=None)
    assert seen.refused() == {}
    assert len(seen.notes()) > len(before)
