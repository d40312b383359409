"""The handover of a clone that shardctl chooses: which one, why, and for how long."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.moves import cloned, service
from shardctl.moves.plan import MovePlan, Options
from shardctl.moves.stopped import MoveStopped
from tests.fixtures import commands
from tests.fixtures.moves.failover import make_standby
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

MOVE = ("move-shards", "2-3", "--to", "c")
STREAM = ("--handover", "stream")
PROMOTE = ("--handover", "promote")


def run(lab: Lab, *words: str) -> Any:
    return commands.here("--topology", str(lab.file), *words)


def planned(lab: Lab, *words: str) -> tuple[dict[str, Any], str]:
    """Give a dry run's plan as JSON, and as the table."""
    shown = run(lab, *MOVE, *words, "--dry-run", "-o", "json")
    table = run(lab, *MOVE, *words, "--dry-run")
    assert (shown.returncode, table.returncode) == (0, 0), shown.stderr
    return json.loads(shown.stdout), table.stdout


def codes(shown: dict[str, Any]) -> set[str]:
    return {one["code"] for one in shown["handover_why"]}


def refusals(lab: Lab) -> list[dict[str, str]]:
    """Give what refuses the stream where it is asked for."""
    done = run(lab, *MOVE, *STREAM, "--dry-run", "-o", "json")
    assert done.returncode == 1, done.stdout
    found: list[dict[str, str]] = json.loads(done.stdout)["errors"]
    return found


def set_on_source(lab: Lab, name: str, value: str) -> None:
    with lab.connect("a") as session:
        session.execute(f"ALTER SYSTEM SET {name} = '{value}'".encode())
    lab.server("a").stop()
    lab.server("a").start()


def as_reasons(errors: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"code": one["code"], "message": one["message"]} for one in errors]


def test_a_clone_hands_over_by_stream_where_nothing_refuses_it(fleet_own: Lab) -> None:
    shown, table = planned(fleet_own)
    assert (shown["method"], shown["handover"]) == ("clone", "stream")
    assert shown["handover_why"] == []
    assert "clone, handover stream" in table
    assert "preflight found nothing against it" in table
    done = run(fleet_own, *MOVE, "--yes", "--keep-reverse", "0s")
    assert done.returncode == 0, done.stderr
    found = json.loads(run(fleet_own, "moves", "show", "-o", "json").stdout)
    assert (found["state"], found["handover"], found["handover_why"]) == ("done", "stream", [])
    assert "promote" in {step["name"] for step in found["steps"]}
    assert "why stream: it is the default" in run(fleet_own, "moves", "show").stdout
    assert fleet_own.leads("shard2") == "c"
    assert fleet_own.problems() == []


def test_standbys_of_the_source_are_in_the_way_of_a_promotion_alone(fleet_own: Lab) -> None:
    (port,) = free_ports(1)
    standby = make_standby(fleet_own.server("a"), fleet_own.directory / "nodes" / "a2", port)
    shown, _ = planned(fleet_own)
    assert (shown["handover"], shown["handover_why"]) == ("stream", [])
    refused = run(fleet_own, *MOVE, *PROMOTE, "--dry-run", "-o", "json")
    assert refused.returncode == 1
    assert [one["code"] for one in json.loads(refused.stdout)["errors"]] == ["standbys"]
    standby.stop(mode="immediate")


def test_a_source_that_does_not_decode_its_wal_is_promoted_and_told(fleet_own: Lab) -> None:
    set_on_source(fleet_own, "wal_level", "replica")
    shown, table = planned(fleet_own)
    assert shown["handover"] == "promote"
    assert shown["handover_why"] == as_reasons(refusals(fleet_own))
    assert "wal_level" in codes(shown)
    assert "clone, handover promote" in table
    for one in shown["handover_why"]:
        assert f"{one['code']}: " in table
    done = run(fleet_own, *MOVE, "--yes")
    assert done.returncode == 0, done.stderr
    found = json.loads(run(fleet_own, "moves", "show", "-o", "json").stdout)
    assert (found["state"], found["handover"]) == ("done", "promote")
    assert found["handover_why"] == shown["handover_why"]
    assert "why not stream: wal_level: " in run(fleet_own, "moves", "show").stdout
    assert fleet_own.problems() == []


def test_a_source_without_a_slot_for_the_stream_is_promoted_and_told(fleet_own: Lab) -> None:
    """One slot is free, which is enough for the clone and not for the stream."""
    set_on_source(fleet_own, "max_replication_slots", "1")
    shown, table = planned(fleet_own)
    assert shown["handover"] == "promote"
    assert shown["handover_why"] == as_reasons(refusals(fleet_own))
    (reason,) = shown["handover_why"]
    assert "slot" in reason["message"]
    assert "why not stream" in table


def test_contents_that_a_stream_cannot_carry_are_reasons_each(fleet_own: Lab) -> None:
    with fleet_own.connect("a") as session:
        session.execute("CREATE TABLE shard2.keyless (n integer)")
        session.execute("CREATE TABLE shard2.referring (id bigint PRIMARY KEY, c regclass)")
    shown, _ = planned(fleet_own)
    assert shown["handover"] == "promote"
    assert codes(shown) == {"no_replica_identity", "oid_columns"}


def test_options_that_rule_a_stream_out_are_reasons_too(fleet_own: Lab) -> None:
    shown, table = planned(fleet_own, "--read-only")
    assert shown["handover"] == "promote"
    assert codes(shown) == {"move_refused"}
    assert "--read-only" in table


def test_a_handover_that_the_operator_chose_has_no_reasons(fleet_own: Lab) -> None:
    for words in (STREAM, PROMOTE):
        shown, table = planned(fleet_own, *words)
        assert shown["handover"] == words[1]
        assert shown["handover_why"] is None
        assert "why" not in table


def test_an_asked_promotion_is_silent_where_a_stream_is_refused(fleet_own: Lab) -> None:
    set_on_source(fleet_own, "wal_level", "replica")
    shown, table = planned(fleet_own, *PROMOTE)
    assert (shown["handover"], shown["handover_why"]) == ("promote", None)
    assert "wal_level" not in table + json.dumps(shown)


def test_what_refuses_every_clone_is_no_reason(fleet_own: Lab) -> None:
    """It is told once and as a refusal; what is only against the stream is not."""
    with fleet_own.connect("a") as session:
        session.execute("CREATE TABLE shard2.keyless (n integer)")
        session.execute("CREATE UNLOGGED TABLE shard2.unlogged (id bigint PRIMARY KEY)")
    words = (*MOVE, "--dry-run", "-o", "json")
    left, promoted = run(fleet_own, *words), run(fleet_own, *words, *PROMOTE)
    assert (left.returncode, promoted.returncode) == (1, 1)
    found = {one["code"] for one in json.loads(left.stdout)["errors"]}
    assert found == {one["code"] for one in json.loads(promoted.stdout)["errors"]}
    assert "no_replica_identity" not in found


def test_a_rehearsal_needs_the_stream_and_says_what_refuses_it(fleet_own: Lab) -> None:
    words = (*MOVE, "--rehearse-only", "--dry-run", "-o", "json")
    assert json.loads(run(fleet_own, *words).stdout)["handover"] == "stream"
    set_on_source(fleet_own, "wal_level", "replica")
    done = run(fleet_own, *words)
    assert done.returncode == 1
    assert "wal_level" in {one["code"] for one in json.loads(done.stdout)["errors"]}


@pytest.mark.parametrize("chosen", ["stream", "promote"])
def test_a_resume_keeps_the_handover_though_its_condition_has_changed(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    reasons = [
        "ALTER DATABASE app RESET lock_timeout",
        "ALTER DATABASE app SET lock_timeout = '1h'",
    ]
    if chosen == "promote":
        reasons.reverse()
    with fleet_own.connect("a") as session:
        session.execute(reasons[0].encode())
    options = Options(5.0, 0.0)
    decided, _ = service.choose(fleet_own.topology, [2, 3], "c", options)
    assert decided.handover == chosen

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cloned, "of", stop)
        with pytest.raises(MoveStopped):
            fleet_own.start(decided)
    with fleet_own.connect("a") as session:
        session.execute(reasons[1].encode())
    assert MovePlan.of_journal(fleet_own.entry().move).handover_why == decided.handover_why
    fleet_own.resume()
    ended = service.read(fleet_own.topology).entry(decided.id)
    assert ended.handover == chosen
    assert fleet_own.leads("shard2") == "c"
    spans = {name for name, _ in (ended.move.report or {})["timeline"]}
    assert ("promote" in spans) == (chosen == "promote")
    assert fleet_own.problems() == []
