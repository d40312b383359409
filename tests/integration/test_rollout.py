"""Rollouts: a few shards first, checks between waves, and the brakes around them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.rollout import run as rolling
from shardctl.rollout.waves import Wanted
from shardctl.state.rollouts import Brakes
from shardctl.topology.model import ShardId
from tests.fixtures import commands
from tests.fixtures.fleets import rolled
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from shardctl.state.rollouts import Rollout
    from tests.fixtures.fleets.fleet import Fleet

LIKES = "0002_likes.sql"


@pytest.fixture
def pending(fleet_8: Fleet) -> Fleet:
    """Give a fleet in which one migration is pending everywhere."""
    fleet_8.migration(
        LIKES,
        "CREATE TABLE likes (id bigint DEFAULT next_id());\n-- shardctl: down\nDROP TABLE likes;\n",
    )
    return fleet_8


def having(one: Fleet, table: str = "likes") -> list[int]:
    """List the shards that have a table."""
    return sorted(
        shard
        for node in one.shards
        for (shard,) in one.query(
            node,
            "SELECT m.shard FROM shardctl.map AS m JOIN shardctl.cluster USING (node)"
            f" WHERE to_regclass(format('%I.%I', m.schema, '{table}')) IS NOT NULL",
        )
    )


def begin(one: Fleet, wanted: Wanted, *checks: str) -> Rollout:
    """Carry out the first wave by the functions behind the command."""
    topology = one.topology()
    _, rollout = rolling.plan(topology, wanted, Brakes(checks), strict=True)
    assert rollout is not None
    return rolling.advance(rolling.Way(one.topology), rollout).rollout


def status(one: Fleet) -> Any:
    done = one.here("migrate", "status", "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def state(one: Fleet) -> tuple[str, int]:
    newest = status(one)["rollouts"][0]
    return newest["state"], newest["wave"]


def well(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_canary_runs_on_a_few_shards_of_all_nodes_and_waits(pending: Fleet) -> None:
    said = well(pending.here("migrate", "--canary", "3"))
    assert having(pending) == [0, 1, 4]
    assert "waits after wave 1 of 2" in said
    assert "`shardctl migrate --continue`" in said
    assert state(pending) == ("waiting", 1)
    [file] = [one for one in status(pending)["migrations"] if one["file"] == LIKES]
    assert (file["state"], file["done"]) == ("partial", [0, 1, 4])
    shown = pending.here("migrate", "status").stdout
    assert "waiting, wave 1 of 2" in shown
    assert "`shardctl migrate --continue`" in shown
    refused = pending.here("migrate")
    assert refused.returncode == 1
    assert "of 0002_likes.sql is waiting after wave 1 of 2" in refused.stderr
    refused = pending.here("init")
    assert refused.returncode == 1
    assert "`shardctl migrate --continue`" in refused.stderr
    assert having(pending) == [0, 1, 4]
    assert "done: rollout" in well(pending.here("migrate", "--continue"))
    assert having(pending) == [*range(8)]
    assert state(pending) == ("done", 2)
    again = pending.here("migrate", "--continue")
    assert (again.returncode, "no rollout is open" in again.stderr) == (1, True)
    assert "nothing to do" in well(pending.here("migrate"))


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (("--shards", "2,7"), [2, 7]),
        (("--node", "b"), [4, 5, 6, 7]),
        (("--waves", "25%,100%"), [0, 4]),
    ],
    ids=str,
)
def test_the_first_wave_is_what_was_asked_for(
    pending: Fleet, words: Sequence[str], first: list[int]
) -> None:
    ran = pending.here("migrate", "-o", "json", *words)
    well(ran)
    done = json.loads(ran.stdout)
    assert having(pending) == first
    assert (done["state"], done["rollout"]["wave"]) == ("waiting", 1)
    assert sorted(done["rollout"]["waves"][0]) == first


def test_a_soak_goes_on_by_itself(pending: Fleet) -> None:
    words = ("--waves", "10%,50%,100%", "--soak", "0s", "--check", "SELECT count(*) = 0 FROM likes")
    said = well(pending.here("migrate", *words))
    assert "wave 2 of 3 is done; the next one begins in 0 s" in said
    assert having(pending) == [*range(8)]
    assert state(pending) == ("done", 3)


def test_a_dry_run_shows_the_waves_and_changes_nothing(pending: Fleet) -> None:
    done = pending.here("migrate", "--canary", "1", "--dry-run", "--detailed-exitcode")
    assert done.returncode == 2
    assert "wave" in done.stdout
    assert having(pending) == []
    assert status(pending)["rollouts"] == []


@pytest.mark.parametrize(
    ("check", "what"),
    [
        ("SELECT count(*) > 5 FROM likes", "returned false"),
        ("SELECT NULL::boolean", "returned NULL"),
        ("SELECT true WHERE false", "returned no rows"),
        ("SELECT nothing FROM likes", 'column "nothing" does not exist'),
        ("SELECT pg_sleep(60) IS NOT NULL", "did not end within 0.2 s"),
        ("CREATE TABLE written ()", "cannot execute CREATE TABLE in a read-only transaction"),
    ],
)
def test_a_check_that_is_not_true_stops_the_rollout(pending: Fleet, check: str, what: str) -> None:
    words = ("--canary", "2", "--soak", "0s", "--check", check, "--check-timeout", "200ms")
    done = pending.here("migrate", *words)
    assert done.returncode == 3, done.stderr
    assert what in done.stderr
    assert "rollback 0002_likes.sql" in done.stderr
    assert having(pending) == [0, 4]
    assert state(pending) == ("stopped", 1)
    again = pending.here("migrate", "--continue")
    assert (again.returncode, having(pending)) == (3, [0, 4])
    assert what in again.stderr


def test_a_failed_check_a_rollback_and_the_corrected_file(pending: Fleet) -> None:
    check = (
        "SELECT count(*) = 2 FROM pg_attribute WHERE attrelid = 'likes'::regclass AND attnum > 0"
    )
    words = ("--canary", "2", "--check", check)
    assert pending.here("migrate", *words).returncode == 3
    said = well(pending.here("migrate", "rollback", "2"))
    assert "0002_likes.sql was undone in 2 shards" in said
    assert having(pending) == []
    assert state(pending) == ("undone", 1)
    pending.migration(LIKES, "CREATE TABLE likes (id bigint, n int);")
    well(pending.here("migrate", *words))
    well(pending.here("migrate", "--continue"))
    assert having(pending) == [*range(8)]
    assert state(pending) == ("done", 2)
    assert pending.plan().changes() == []


def test_a_shard_that_comes_out_otherwise_stops_the_rollout(fleet_8: Fleet) -> None:
    fleet_8.migration(
        LIKES,
        "CREATE TABLE likes (id bigint);\n"
        "DO $$ BEGIN IF current_schema() = 'shard4' THEN ALTER TABLE likes ADD COLUMN more int;"
        " END IF; END $$;\n",
    )
    done = fleet_8.here("migrate", "--canary", "3")
    assert done.returncode == 3
    assert "shards 4 have another structure than the other changed shards" in done.stderr
    again = fleet_8.here("migrate", "--continue")
    assert (again.returncode, having(fleet_8)) == (3, [0, 1, 4])
    # shard 4 is made as the others are, by its owner's hand.
    fleet_8.execute("b", "DROP TABLE shard4.likes; CREATE TABLE shard4.likes (id bigint)")
    well(fleet_8.here("migrate", "--continue"))
    assert having(fleet_8) == [*range(8)]


def test_a_shard_that_differed_before_may_differ_afterwards(pending: Fleet) -> None:
    pending.execute("a", "CREATE TABLE shard0.extra (n int)")
    well(pending.here("migrate", "--canary", "3"))
    well(pending.here("migrate", "--continue"))
    assert having(pending) == [*range(8)]


def test_a_migration_that_fails_in_the_canary_changes_no_other_shard(pending: Fleet) -> None:
    pending.execute("b", "CREATE TABLE shard4.likes (n int)")
    done = pending.here("migrate", "--canary", "2", "--soak", "0s")
    assert done.returncode == 3
    assert 'shard 4 on node b: relation "likes" already exists' in done.stderr
    assert having(pending) == [0, 4]
    assert state(pending) == ("stopped", 1)
    assert 'relation "likes" already exists' in pending.here("migrate", "status").stdout
    pending.execute("b", "DROP TABLE shard4.likes")
    well(pending.here("migrate", "--continue"))  # it soaks, as it did before
    assert having(pending) == [*range(8)]
    assert state(pending) == ("done", 2)


def test_a_file_that_changes_between_waves_is_refused(pending: Fleet) -> None:
    begin(pending, Wanted(canary=1))
    before = (pending.directory / "migrations" / LIKES).read_text()
    pending.migration(LIKES, "CREATE TABLE likes (id int);")
    done = pending.here("migrate", "--continue")
    assert done.returncode == 1
    assert "0002_likes.sql was changed since rollout" in done.stderr
    (pending.directory / "migrations" / LIKES).unlink()
    assert "is missing since rollout" in pending.here("migrate", "--continue").stderr
    assert having(pending) == [0]
    pending.migration(LIKES, before)
    pending.migration("0003_more.sql", "CREATE TABLE more ();")
    well(pending.here("migrate", "--continue"))
    assert having(pending) == [*range(8)]
    assert having(pending, "more") == []  # it came later, and has a rollout of its own


def test_the_second_of_two_operators_changes_nothing(pending: Fleet) -> None:
    rollout = begin(pending, Wanted(percents=(20, 50, 100)))
    assert rolling.advance(rolling.Way(pending.topology), rollout).rollout.wave == 2
    before = having(pending)
    with raises_code("rollout_outdated", match="it is waiting, wave 2 of 3"):
        rolling.advance(rolling.Way(pending.topology), rollout)
    assert having(pending) == before


def test_two_rollouts_cannot_begin_at_once(pending: Fleet) -> None:
    plans = [
        rolling.plan(pending.topology(), Wanted(first=(ShardId(shard),)), Brakes(), strict=True)[1]
        for shard in (0, 7)
    ]
    assert plans[0] is not None
    assert plans[1] is not None
    rolling.advance(rolling.Way(pending.topology), plans[0])
    with raises_code("rollout_open"):
        rolling.advance(rolling.Way(pending.topology), plans[1])
    assert having(pending) == [0]


def test_a_node_that_is_away_holds_up_only_its_own_shards(pending: Fleet) -> None:
    begin(pending, Wanted(canary=2))
    with pending.at_ports(b=free_ports(1)[0]):
        done = pending.here("migrate", "--continue")
        assert done.returncode == 3, done.stderr
        assert "node b was skipped" in done.stderr
        strict = pending.here("migrate", "--continue", "--all-or-nothing")
        assert strict.returncode == 1
        shown = pending.here("migrate", "status")
        assert shown.returncode == 3
        assert "waiting, wave 2 of 2" in shown.stdout
    assert having(pending) == [0, 1, 2, 3, 4]
    well(pending.here("migrate", "--continue"))
    assert having(pending) == [*range(8)]
    assert state(pending) == ("done", 2)


def test_a_node_that_missed_the_end_believes_the_others(pending: Fleet) -> None:
    begin(pending, Wanted(canary=2))
    rows = pending.query("b", "SELECT id, serial, state FROM shardctl.rollout")
    well(pending.here("migrate", "--continue"))
    name, serial, kept = rows[0]
    pending.execute(
        "b", f"UPDATE shardctl.rollout SET serial = {serial}, state = '{kept}' WHERE id = '{name}'"
    )
    assert state(pending) == ("done", 2)
    pending.migration("0003_more.sql", "CREATE TABLE more ();")
    well(pending.here("migrate"))
    assert having(pending, "more") == [*range(8)]


def test_a_streamed_move_holds_up_only_its_own_nodes(pending: Fleet) -> None:
    pending.execute(
        "a",
        "INSERT INTO shardctl.move (id, state, method, source, target, shards, schemas, retired,"
        " plan, who) VALUES ('5f3a9c1e', 'reserved', 'stream', 'a', 'c', '{0}', '{shard0}',"
        " '{shard0__retired_5f3a9c1e}', '{}', 'a test')",
    )
    strict = pending.here("migrate", "--all-or-nothing")
    assert strict.returncode == 1
    assert "move 5f3a9c1e streams shards 0 from node a to node c, and" in strict.stderr
    done = pending.here("migrate", "--canary", "1", "--soak", "0s")
    assert done.returncode == 3, done.stderr
    assert "node a was skipped: move 5f3a9c1e streams shards 0" in done.stderr
    assert having(pending) == [4, 5, 6, 7]
    pending.execute("a", "DELETE FROM shardctl.move")
    assert state(pending) == ("waiting", 2)
    well(pending.here("migrate", "--continue"))
    assert state(pending) == ("done", 2)
    assert having(pending) == [*range(8)]


def test_an_abandoned_rollout_leaves_the_rest_to_migrate(pending: Fleet) -> None:
    begin(pending, Wanted(canary=2))
    well(pending.here("migrate", "abandon"))
    assert state(pending) == ("abandoned", 1)
    assert having(pending) == [0, 4]
    well(pending.here("migrate"))
    assert having(pending) == [*range(8)]


def test_without_a_terminal_yes_is_required(pending: Fleet) -> None:
    begin(pending, Wanted(canary=2))
    for words in (["--continue"], ["rollback", "0002"], ["abandon"]):
        refused = commands.here("--topology", str(pending.file), "migrate", *words)
        assert refused.returncode == 2
        assert "needs a terminal to ask" in refused.stderr
    assert having(pending) == [0, 4]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--canary", "1", "--node", "a"), "exclude each other"),
        (("--continue", "--canary", "1"), "--continue takes the waves"),
        (("--soak", "1m"), "--soak needs waves"),
        (("--waves", "10%,5%,100%"), "percentages must grow"),
        (("--waves", "10%"), "end with 100%"),
        (("--waves", ""), "percentages must grow"),
        (("--node", "z"), "unknown node 'z'"),
        (("--shards", "99"), "shard 99 is not in the topology"),
        (("rollback", "77"), "no migration '77'"),
        (("--accept", "0002:no-such-rule"), "expected FILE or FILE:RULE"),
        (("--canary", "1", "--check", "SELECT true; SELECT false"), "is not one query"),
        (("--canary", "1", "--check", "COPY photos TO STDOUT"), "is not one query"),
        (("--canary", "1", "--check", ""), "is not one query"),
    ],
    ids=str,
)
def test_bad_usage_is_refused(pending: Fleet, words: Sequence[str], what: str) -> None:
    done = pending.here("migrate", *words)
    assert done.returncode == 2, done.stderr
    assert what in done.stderr
    assert having(pending) == []


def test_without_the_shards_that_were_asked_for_no_other_is_first(pending: Fleet) -> None:
    with pending.at_ports(b=free_ports(1)[0]):
        for words in (("--node", "b"), ("--shards", "5-6")):
            done = pending.here("migrate", *words)
            assert done.returncode == 1, done.stderr
            assert "on a node that was left out (b)" in done.stderr
    assert having(pending) == []
    begin(pending, Wanted(canary=1))
    well(pending.here("migrate", "abandon"))
    done = pending.here("migrate", "--shards", "0")
    assert (done.returncode, having(pending)) == (1, [0])


def test_lock_wait_bounds_all_attempts(pending: Fleet) -> None:
    pending.migration(LIKES, "ALTER TABLE photos ADD COLUMN n int;")
    with pending.connect("a", autocommit=False) as holder:
        holder.execute("LOCK TABLE shard2.photos IN ACCESS SHARE MODE")
        words = ("--lock-wait", "3s", "--lock-timeout", "500ms", "--attempts", "100000")
        done = pending.here("migrate", *words)
    assert done.returncode == 3
    assert "canceling statement due to lock timeout" in done.stderr
    assert "LOCK TABLE shard2.photos IN ACCESS SHARE MODE" in done.stderr  # its holder's statement


def test_the_page_of_rollouts_is_true_of_a_few_shards(new_fleet: Fleet) -> None:
    new_fleet.count, new_fleet.shards = 40, {"a": "0-19", "b": "20-39"}
    new_fleet.copy()
    new_fleet.write()
    rolled.prove(new_fleet, rolled.carried_out(new_fleet))
