"""What preflight judges of a streamed move, by what was seen of source and target."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shardctl.checks.clock import Offset
from shardctl.moves.preflight import (
    member,
    registry,
    replication,
    server,
    subscriber,
    subscription,
)
from tests.fixtures.moves.facts import C, fit
from tests.fixtures.moves.stream_facts import streamed

MB = 1 << 20


def test_each_method_has_subjects_of_its_own_and_another_has_a_clones() -> None:
    clone, stream = fit().plan, streamed().plan
    assert registry.of(clone) == registry.CLONED
    assert registry.of(stream) == registry.STREAMED
    shared = {one.look for one in registry.CLONED} & {one.look for one in registry.STREAMED}
    assert server.look in shared


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"wal_level": "replica"}, "wal_level", "SET wal_level = logical there and restart"),
        ({"max_replication_slots": "0"}, "replication_slots", "a move needs 1 free"),
        ({"max_wal_senders": "1"}, "wal_senders", "a move needs 2 free"),
    ],
)
def test_sources_that_cannot_decode(changes: dict[str, str], code: str, said: str) -> None:
    seen = streamed()
    seen.source(settings=changes)
    assert said in seen.refused()[code]


@pytest.mark.parametrize(
    ("number", "version", "code"),
    [
        (150_013, "15.13", "decoding_broken"),
        (160_009, "16.9", "decoding_broken"),
        (170_005, "17.5", "decoding_broken"),
        (140_020, "14.20", "too_old"),
    ],
)
def test_versions_that_do_not_decode_well(number: int, version: str, code: str) -> None:
    seen = streamed()
    both = dataclasses.replace(seen.found[server.look], version_number=number, version=version)
    seen.found[server.look] = both
    seen.found[member.look] = dataclasses.replace(both, version_number=180_004, version="18.4")
    assert version in seen.only(code)


def test_a_slot_that_is_dropped_while_the_copy_is_made() -> None:
    seen = streamed()
    seen.source(sizes={"shard2": 200 * MB * 100, "shard3": 0})  # 100 s at the rate of COPY_RATE
    seen.found[replication.look_for_timeout] = 299
    assert "idle_replication_slot_timeout (299 s) could drop the slot" in seen.only("slot_timeout")
    seen.found[replication.look_for_timeout] = 300
    assert seen.refused() == {}
    assert "unused for 300 s" in seen.notes()


def test_a_standby_that_is_away_is_named_before_the_copy_and_not_refused() -> None:
    seen = streamed()
    seen.found[replication.look_for_standbys] = ("of_standby",)
    assert seen.refused() == {}
    assert "standbys that are not connected: of_standby" in seen.notes()
    seen.choose(ignore_standby=True)
    assert "of_standby" not in seen.notes()


def test_a_fence_needs_a_lock_for_each_table() -> None:
    seen = streamed()
    seen.source(tables=100_000)
    assert "the fence takes 100,002 locks" in seen.only("lock_table")


def test_targets_that_are_no_member_or_have_the_shards() -> None:
    seen = streamed()
    seen.peer(C, live=("shard2",))
    assert "`shardctl moves doctor` to clear" in seen.only("schema_in_the_way")
    seen = streamed()
    seen.peer(C, is_member=False)
    assert "schema shardctl is missing" in seen.only("no_streams")
    seen = streamed()
    seen.found[member.look] = dataclasses.replace(seen.found[member.look], in_recovery=True)
    assert "its server is a standby" in seen.only("target_standby")
    seen = streamed()
    newer = dataclasses.replace(seen.found[server.look], version_number=180_004, version="18.4")
    seen.found[server.look] = newer
    assert "needs a target with PostgreSQL 18 or newer" in seen.only("version")


def test_clocks_that_differ() -> None:
    seen = streamed()
    seen.found[member.clock_of] = Offset(0.9, 0.01)
    assert "node c: its clock is 0.90 s ahead of" in seen.only("clock_skew")


@pytest.mark.parametrize(
    ("version", "settings", "used", "code"),
    [
        (15, {"max_worker_processes": "2"}, {"workers": 2}, "workers"),
        (15, {"max_logical_replication_workers": "1"}, {"appliers": 1}, "appliers"),
        (15, {"max_replication_slots": "1"}, {"origins": 1}, "origins"),
        (18, {"max_active_replication_origins": "1"}, {"origins": 1}, "origins"),
        (15, {}, {"lacking": ("the right to create subscriptions",)}, "rights"),
        (15, {}, {"settings": ("lock_timeout=2s", "array_nulls=off")}, "apply_settings"),
        (16, {}, {"passed_on": ("shard2.photos (by app)",)}, "rights_passed_on"),
    ],
)
def test_targets_without_room_for_a_subscription(
    version: int, settings: dict[str, str], used: dict[str, Any], code: str
) -> None:
    seen = streamed()
    there = seen.found[member.look]
    seen.found[member.look] = dataclasses.replace(
        there, version_number=version * 10_000 + 4, settings={**there.settings, **settings}
    )
    seen.found[subscriber.look] = subscriber.Subscriber(**used)
    assert seen.only(code)


def test_who_may_make_subscriptions_is_told_as_the_targets_version_has_it() -> None:
    seen = streamed()
    seen.found[subscriber.look] = subscriber.Subscriber(lacking=("pg_monitor",))
    seen.found[member.look] = dataclasses.replace(
        seen.found[member.look], version_number=150_013, version="15.13"
    )
    told = seen.only("rights")
    assert "has PostgreSQL 15.13, which lets only superusers make subscriptions" in told
    assert "pg_create_subscription" not in told
    seen.found[member.look] = dataclasses.replace(seen.found[member.look], version_number=160_009)
    told = seen.only("rights")
    assert "GRANT pg_create_subscription, pg_monitor TO" in told
    assert "superusers make" not in told


def test_what_is_noted_of_a_target() -> None:
    seen = streamed()
    there = seen.found[member.look]
    changed = {"wal_retrieve_retry_interval": "30000", "wal_level": "replica"}
    seen.found[member.look] = dataclasses.replace(there, settings={**there.settings, **changed})
    seen.found[member.look_at_disk] = None
    told = seen.notes()
    assert "waits 30 s before it connects to the source again" in told
    assert "to another node later, set it to logical" in told
    assert "how much room the disk of node c has was not measured" in told


def test_a_target_needs_room_for_the_shards() -> None:
    seen = streamed()
    seen.source(sizes={"shard2": 1000 * MB, "shard3": 1000 * MB})
    seen.found[member.look_at_disk] = 3000 * MB
    assert "the copy needs 3,224 MB" in seen.only("disk")
    seen.found[member.look_at_disk] = 3224 * MB
    assert seen.refused() == {}


def test_a_login_by_a_role_of_the_move() -> None:
    seen = streamed()
    seen.found[subscription.look] = subscription.Login(None, own=True)
    assert seen.refused() == {}
    assert "stores the password of the stream's login" in seen.notes()
    seen.found[subscription.look] = subscription.Login("no pg_hba.conf entry", own=True)
    assert "cannot log in to node a as shardctl_" in seen.only("replication_login")


def test_a_role_of_the_move_that_cannot_be_made() -> None:
    seen = streamed()
    maker = subscription.Maker(may_make=False, may_connect=True)
    seen.found |= {
        subscription.look: subscription.Login(None, own=True),
        subscription.look_for_maker: maker,
    }
    assert "not a superuser on node c" in seen.only("stream_role")
    seen.found[subscription.look_for_maker] = dataclasses.replace(
        maker, may_make=True, may_connect=False
    )
    assert "connect to the database" in seen.only("stream_role")
    seen.found[subscription.look] = subscription.Login(None, own=False)
    assert seen.refused() == {}
