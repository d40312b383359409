"""A clone that hands over by stream: its plan, what comes along with it, and its reverse."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.errors import UsageError
from shardctl.moves import clone_stream, service, stream
from shardctl.moves.plan import MoveRefused, Options
from shardctl.moves.stopped import MoveStopped
from shardctl.postgres import opening, overrides
from shardctl.postgres.logical import publication
from shardctl.state.journal import MoveState
from tests.fixtures import commands
from tests.fixtures.moves import reversals
from tests.fixtures.moves.own import messages
from tests.fixtures.moves.stream_moves import on_source

if TYPE_CHECKING:
    from shardctl.moves.plan import MovePlan
    from tests.fixtures.moves.own import Lab

DRY_RUN = ("move-shards", "2-3", "--to", "c", "--handover", "stream", "--dry-run", "-o", "json")
SUBSCRIBE = (
    "CREATE SUBSCRIPTION others CONNECTION 'host=127.0.0.1 port=1' PUBLICATION p"
    " WITH (connect = false, slot_name = 'others')"
)


def planned(lab: Lab, **options: Any) -> MovePlan:
    given = {"max_pause_s": 5.0, "retain_s": 0.0, **options}
    return service.plan(
        lab.topology, [2, 3], "c", Options(**given), method="clone", handover="stream"
    )


def refusals(lab: Lab) -> set[str]:
    """Give the codes with which a plan is refused."""
    done = commands.here("--topology", str(lab.file), *DRY_RUN)
    assert done.returncode == 1, done.stderr
    return {error["code"] for error in json.loads(done.stdout)["errors"]}


def test_the_plan_names_the_handover_and_a_reverse(fleet_own: Lab) -> None:
    done = commands.here("--topology", str(fleet_own.file), *DRY_RUN)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["method"], shown["handover"]) == ("clone", "stream")
    assert any("can be reversed for" in note for note in shown["notes"])
    table = commands.here("--topology", str(fleet_own.file), *DRY_RUN[:-2])
    assert "clone, handover stream" in table.stdout


def test_what_a_stream_cannot_carry_is_refused_with_the_other_handover(fleet_own: Lab) -> None:
    with fleet_own.connect("a") as session:
        session.execute("CREATE TABLE shard2.keyless (n integer)")
        session.execute("CREATE TABLE shard2.referring (id bigint PRIMARY KEY, c regclass)")
        session.execute("ALTER DATABASE app SET lock_timeout = '1min'")
    assert {"no_replica_identity", "oid_columns", "apply_settings"} <= refusals(fleet_own)
    done = commands.here("--topology", str(fleet_own.file), *DRY_RUN)
    assert "--handover promote" in done.stderr
    assert "--method clone" not in done.stderr


def test_a_source_that_does_not_decode_its_wal_is_refused(fleet_own: Lab) -> None:
    with fleet_own.connect("a") as session:
        session.execute("ALTER SYSTEM SET wal_level = replica")
    fleet_own.server("a").stop()
    fleet_own.server("a").start()
    assert "wal_level" in refusals(fleet_own)


def test_handovers_that_do_not_fit_are_refused(fleet_own: Lab) -> None:
    options = Options(5.0, 0.0)
    with pytest.raises(UsageError, match="unknown handover"):
        service.plan(fleet_own.topology, [2], "c", options, method="clone", handover="x")
    with pytest.raises(MoveRefused, match="has one handover"):
        service.plan(fleet_own.topology, [2], "b", options, method="stream", handover="promote")
    with pytest.raises(MoveRefused, match="cannot refuse writes"):
        planned(fleet_own, read_only=True)


def test_a_clone_hands_over_and_its_shards_go_back(fleet_own: Lab) -> None:
    first = fleet_own.put(2)
    plan = planned(fleet_own, keep_reverse_s=reversals.KEEP_S)
    service.preflight(fleet_own.topology, plan)
    fleet_own.start(plan)
    assert fleet_own.leads("shard2") == "c"
    assert fleet_own.problems() == []
    there = reversals.entry(fleet_own, plan.id)
    assert there.can() == ["reverse", "finish"]
    second = fleet_own.put(2)
    with fleet_own.alias("shard2") as session:
        session.execute("UPDATE photos SET user_id = 77 WHERE id = %s", [first])
    reversals.reverse(fleet_own, plan.id)
    assert fleet_own.leads("shard2") == "a"
    found = dict(fleet_own.ask("a", "SELECT id, user_id FROM shard2.photos"))
    assert (found[first], found[second]) == (77, 2)
    assert on_source(fleet_own) == []
    assert fleet_own.problems() == []


def test_a_rehearsal_deletes_the_clone(fleet_own: Lab) -> None:
    fleet_own.put(2)
    fleet_own.start(planned(fleet_own, rehearse_only=True))
    move = fleet_own.copy("a")
    assert move.state is MoveState.aborted
    assert (move.report or {})["rehearsal"]["differing"] == []
    assert not (fleet_own.directory / "nodes" / "c").exists()
    assert on_source(fleet_own) == []
    assert fleet_own.leads("shard2") == "a"


def test_subscriptions_of_the_source_do_not_run_on_the_clone(fleet_own: Lab) -> None:
    with fleet_own.connect("a") as session:
        session.execute(SUBSCRIBE.encode())
    fleet_own.start(planned(fleet_own))
    assert fleet_own.ask("c", "SELECT subname FROM pg_subscription") == []
    assert fleet_own.ask("a", "SELECT subname, subslotname FROM pg_subscription") == [
        ("others", "others")
    ]
    assert any("dropped subscription others" in one for one in fleet_own.notices)


def test_a_subscription_enabled_in_another_database_ends_the_move(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is enabled behind the preflight: no worker of the clone may run it."""
    with fleet_own.connect("a") as session:
        session.execute("CREATE DATABASE other")
    whole = publication.create

    def create(*given: Any, **named: Any) -> None:
        whole(*given, **named)
        with fleet_own.connect("a", dbname="other") as other:
            other.execute(SUBSCRIBE.encode())
            other.execute("ALTER SUBSCRIPTION others ENABLE")

    monkeypatch.setattr(publication, "create", create)
    with pytest.raises(MoveStopped) as caught:
        fleet_own.start(planned(fleet_own))
    assert "others in database other" in messages(caught.value)
    log = fleet_own.server("c").log.read_text()
    assert "logical replication apply worker" not in log
    fleet_own.abort()
    assert not (fleet_own.directory / "nodes" / "c").exists()
    assert on_source(fleet_own) == []


def test_only_shardctl_logs_in_before_the_cutover_and_no_shard_takes_writes(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []
    whole = opening.open_logins

    def refused(user: str, schema: str) -> str | None:
        try:
            with fleet_own.connect("c", user=user) as session:
                session.execute(f"INSERT INTO {schema}.photos (user_id) VALUES (1)".encode())
        except psycopg.OperationalError:
            return "login"
        except psycopg.Error as error:
            return error.sqlstate
        return None

    def open_up(*given: Any) -> None:
        seen.append(refused("app", "shard2"))
        whole(*given)
        for user in ("app", "postgres"):
            seen.extend(refused(user, schema) for schema in ("shard2", "shard0"))

    monkeypatch.setattr(opening, "open_logins", open_up)
    fleet_own.start(planned(fleet_own))
    assert seen == ["login", "42501", "42P01", "25006", "42P01"]


def test_a_clone_that_was_promoted_elsewhere_is_made_again(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = overrides.recovering
    row = fleet_own.put(2)

    def earlier(lsn: str) -> dict[str, str]:
        # What the source commits before the slot's position: the clone would lack it.
        high, _, low = lsn.partition("/")
        return whole(f"{high}/{int(low, 16) - 0x60:X}")

    with monkeypatch.context() as patch:
        patch.setattr(overrides, "recovering", earlier)
        with pytest.raises(MoveStopped) as caught:
            fleet_own.start(planned(fleet_own))
    assert "its clone was promoted at" in messages(caught.value)
    fleet_own.resume()
    assert fleet_own.leads("shard2") == "c"
    assert (row,) in fleet_own.ask("c", "SELECT id FROM shard2.photos")
    assert fleet_own.problems() == []


def test_a_clone_that_does_not_answer_after_a_failover_of_its_source_is_kept(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have a decision that the source has lost."""

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stream, "hold_snapshot", stop)
        patch.setattr(clone_stream, "hold_snapshot", stop)
        with pytest.raises(MoveStopped):
            fleet_own.start(planned(fleet_own))
    with fleet_own.connect("a") as session:
        session.execute(
            "UPDATE shardctl.stream SET note = jsonb_set(note, '{timeline}', '77')"
            " WHERE what = 'begun'"
        )
    fleet_own.server("c").stop()
    with pytest.raises(MoveStopped) as caught:
        fleet_own.abort()
    assert "it may own the shards" in messages(caught.value)
    assert (fleet_own.directory / "nodes" / "c").exists()
    fleet_own.server("c").start()
    fleet_own.abort()
    assert not (fleet_own.directory / "nodes" / "c").exists()
