"""What others have on the source, or do to the clone, while a clone hands over by stream."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import pytest

from shardctl.errors import ShardctlError
from shardctl.hosts import accounts
from shardctl.moves import choice
from shardctl.moves.confirm import CopiesDiffer
from shardctl.moves.plan import Options
from shardctl.moves.rehearsal import RehearsalRefused
from shardctl.postgres.logical import slot
from shardctl.state.journal import MoveState
from tests.fixtures import commands
from tests.fixtures.moves.beside import assert_clean, fails, run, start_clone
from tests.fixtures.moves.harm import keep_for_slots, lose_slot
from tests.fixtures.moves.own import messages

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.fault

KEYLESS = "CREATE TABLE shard2.keyless (n integer); INSERT INTO shard2.keyless VALUES (1)"
UNLOGGED = "CREATE UNLOGGED TABLE shard2.unlogged (id bigint PRIMARY KEY)"
ALWAYS = (
    "CREATE FUNCTION shard2.t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
    "CREATE TRIGGER t BEFORE INSERT ON shard2.photos FOR EACH ROW EXECUTE FUNCTION shard2.t();"
    "ALTER TABLE shard2.photos ENABLE ALWAYS TRIGGER t"
)
VIEW = "CREATE MATERIALIZED VIEW shard2.seen AS SELECT count(*) AS n FROM shard2.photos"
WIDE = "CREATE PUBLICATION every FOR ALL TABLES"
LATE = {
    "no_replica_identity": (KEYLESS, "DROP TABLE shard2.keyless"),
    "unlogged": (UNLOGGED, "DROP TABLE shard2.unlogged"),
    "always_triggers": (ALWAYS, "DROP FUNCTION shard2.t CASCADE"),
    "materialized_views": (VIEW, "DROP MATERIALIZED VIEW shard2.seen"),
    "wide_publications": (WIDE, "DROP PUBLICATION every"),
}
"""What comes behind the preflight, while a large server is copied, and how it goes again."""


def aborted(fleet: Lab) -> None:
    """Abort the move, and see that nothing is left of it."""
    fleet.abort()
    assert fleet.copy("a").state is MoveState.aborted
    assert not (fleet.directory / "nodes" / "c").exists()
    assert_clean(fleet, "a")
    assert fleet.problems() == []


def moved(fleet: Lab, proof: str = "compared") -> None:
    """See that the shards are on the clone, and that nothing is left."""
    assert fleet.copy("c").proof == proof
    assert_clean(fleet, "c")
    assert fleet.problems() == []
    assert fleet.put(2)


@pytest.mark.parametrize("code", LATE)
def test_what_no_stream_carries_is_named_though_it_comes_while_the_copy_is_made(
    fleet_own: Lab, code: str
) -> None:
    """Once published, a table without a key would refuse the updates of its clients."""
    make, drop = LATE[code]
    error = fails(fleet_own, start_clone, promote=lambda: run(fleet_own, "a", make))
    # PostgreSQL itself refuses to publish an unlogged table, and names it.
    assert code in {one.code for one in error.parts()} or code in error.message, messages(error)
    if code == "no_replica_identity":
        run(fleet_own, "a", "UPDATE shard2.keyless SET n = 2")
        assert "--handover promote" in (error.hint or "")
    assert fleet_own.ask("a", "SELECT FROM pg_publication WHERE pubname ~ 'shardctl'") == []
    assert fleet_own.put(2)
    run(fleet_own, "a", drop)
    fleet_own.resume()
    moved(fleet_own)


def test_a_table_without_a_key_chooses_the_promotion_and_says_why(fleet_own: Lab) -> None:
    run(fleet_own, "a", KEYLESS)
    decided, _ = choice.choose(fleet_own.topology, [2, 3], "c", Options(5.0, 0.0))
    assert decided.handover == "promote"
    [why] = decided.handover_why or []
    assert why["code"] == "no_replica_identity"
    assert "shard2.keyless" in why["message"]
    fleet_own.start(decided)
    assert fleet_own.ask("c", "SELECT n FROM shard2.keyless") == [(1,)]
    moved(fleet_own)


def test_a_prepared_transaction_bounds_the_wait_for_a_slot_and_is_named(
    fleet_own_prepared: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = fleet_own_prepared
    monkeypatch.setattr(slot, "_LOCK_TIMEOUT_S", 0.6)
    error = fails(
        fleet,
        start_clone,
        promote=lambda: run(
            fleet, "a",
            "BEGIN; INSERT INTO shard2.photos (user_id) VALUES (-1);"
            " PREPARE TRANSACTION 'old'",
        ),
    )  # fmt: skip
    assert error.code == "slot_blocked", messages(error)
    assert "prepared transaction old" in error.message
    assert fleet.ask("a", "SELECT FROM pg_replication_slots WHERE slot_type = 'logical'") == []
    run(fleet, "a", "COMMIT PREPARED 'old'")
    fleet.resume()
    assert (-1,) in fleet.ask("c", "SELECT user_id FROM shard2.photos")
    moved(fleet)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_transaction_prepared_while_the_clone_follows_ends_before_the_fence(
    fleet_own_prepared: Lab, end: str
) -> None:
    fleet = fleet_own_prepared
    insert = "INSERT INTO shard{}.photos (user_id) VALUES (-1)"

    def prepare() -> None:
        for shard in (2, 0):
            text = f"BEGIN; {insert.format(shard)}; PREPARE TRANSACTION 'of {shard}'"
            run(fleet, "a", text)

    error = fails(fleet, start_clone, rehearse=prepare)
    assert "a prepared transaction (of 2)" in messages(error)
    assert fleet.put(2)
    run(fleet, "a", f"{end} PREPARED 'of 2'")
    with contextlib.suppress(ShardctlError):
        fleet.resume()
    run(fleet, "a", f"{end} PREPARED 'of 0'")  # of a shard that stays
    if not fleet.copy("a").state.closed:
        fleet.resume()
    there = fleet.ask("c", "SELECT user_id FROM shard2.photos WHERE user_id = -1")
    assert there == ([(-1,)] if end == "COMMIT" else [])
    moved(fleet)


def test_retired_schemas_on_a_clone_that_are_dropped_by_hand_hold_nothing_up(
    fleet_own: Lab,
) -> None:
    def by_hand() -> None:
        move = fleet_own.entry().move.id
        run(
            fleet_own, "c",
            f"DROP SCHEMA shard0__retired_{move} CASCADE",
            f"INSERT INTO shard1__retired_{move}.photos (user_id) VALUES (1)",
        )  # fmt: skip

    start_clone(fleet_own, cutover=by_hand)
    moved(fleet_own)
    done = commands.here("--topology", str(fleet_own.file), "prune", "--now", "--yes")
    assert done.returncode == 0, done.stderr
    assert fleet_own.schemas("c") == {"shard2", "shard3"}
    assert fleet_own.problems() == []


BY_HAND = """
    ALTER TABLE shard2.photos DISABLE TRIGGER ALL;
    INSERT INTO shard2.photos (id, user_id) VALUES (-7, 1);
    ALTER TABLE shard2.photos ENABLE TRIGGER ALL;
    ALTER TABLE shard2.photos ENABLE ALWAYS TRIGGER shardctl_copy
"""


def test_a_row_on_the_clone_by_hand_is_found_before_clients_wait(fleet_own: Lab) -> None:
    with pytest.raises(RehearsalRefused) as caught:
        start_clone(fleet_own, rehearse=lambda: run(fleet_own, "c", BY_HAND))
    assert "shard2.photos" in caught.value.message
    assert fleet_own.copy("a").state is MoveState.aborted
    assert not (fleet_own.directory / "nodes" / "c").exists()
    assert_clean(fleet_own, "a")


def test_a_row_on_the_clone_by_hand_behind_the_rehearsal_is_found_by_the_comparison(
    fleet_own: Lab,
) -> None:
    error = fails(fleet_own, start_clone, cutover=lambda: run(fleet_own, "c", BY_HAND))
    assert isinstance(error, CopiesDiffer)
    assert "shard2.photos" in error.message
    assert fleet_own.leads("shard2") == "c"
    assert fleet_own.copy("c").proof == "differs"


AUDIT = (
    "CREATE FUNCTION public.note() RETURNS event_trigger LANGUAGE plpgsql AS"
    " $$BEGIN INSERT INTO public.audit VALUES (tg_tag); END$$"
)
OTHERS = (
    "CREATE PUBLICATION theirs FOR TABLE shard2.photos, shard0.photos",
    "SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')",
    "CREATE TABLE public.audit (tag text)",
    AUDIT,
    "CREATE EVENT TRIGGER note ON ddl_command_end EXECUTE FUNCTION public.note()",
    "ALTER EVENT TRIGGER note ENABLE ALWAYS",
)


def test_tools_of_others_on_the_source_stay_as_they_are(fleet_own: Lab) -> None:
    """Slots and publications of another stream, an audit of DDL, sessions with temporary tables."""
    run(fleet_own, "a", *OTHERS)
    slots = "SELECT slot_name, restart_lsn FROM pg_replication_slots ORDER BY 1"
    before = fleet_own.ask("a", slots)
    with fleet_own.connect("a") as idle:
        idle.execute("CREATE TEMPORARY TABLE photos (id bigint)")
        start_clone(fleet_own, follow=lambda: idle.execute("RESET ALL; DISCARD PLANS"))
        idle.execute("INSERT INTO photos VALUES (1)")
    assert fleet_own.copy("c").proof == "compared"
    assert fleet_own.ask("a", slots) == before
    assert fleet_own.ask("c", slots) == []
    assert fleet_own.ask("c", "SELECT pubname FROM pg_publication") == [("theirs",)]
    assert fleet_own.problems() == []
    with fleet_own.connect("a") as session:
        session.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


@pytest.mark.parametrize(
    "tag", ["CREATE PUBLICATION", "CREATE SUBSCRIPTION", "CREATE TRIGGER", "ALTER SCHEMA"]
)
def test_an_event_trigger_that_refuses_a_statement_ends_the_move_before_it_begins_or_cleanly(
    fleet_own: Lab, tag: str
) -> None:
    run(
        fleet_own, "a",
        "CREATE FUNCTION public.forbid() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE 'not in office hours'; END$$",
        f"CREATE EVENT TRIGGER forbid ON ddl_command_start WHEN TAG IN ('{tag}')"
        " EXECUTE FUNCTION public.forbid()",
    )  # fmt: skip
    with pytest.raises(ShardctlError) as caught:
        choice.choose(fleet_own.topology, [2, 3], "c", Options(5.0, 0.0), handover="stream",
                      method="clone")  # fmt: skip
    assert "event_trigger" in {one.code for one in caught.value.parts()}
    error = fails(fleet_own, start_clone)
    assert "not in office hours" in messages(error)
    aborted(fleet_own)


SETTINGS: dict[str, tuple[str, ...]] = {
    "impatient": (
        "ALTER SYSTEM SET wal_sender_timeout = '1s'",
        "ALTER SYSTEM SET wal_receiver_timeout = '2s'",
        "ALTER SYSTEM SET client_connection_check_interval = '1s'",
        "ALTER SYSTEM SET idle_session_timeout = '1s'",
        "ALTER SYSTEM SET idle_in_transaction_session_timeout = '1s'",
    ),
    "strict": (
        "ALTER SYSTEM SET statement_timeout = '500ms'",
        "ALTER SYSTEM SET lock_timeout = '100ms'",
    ),
    "of the database": (
        "ALTER DATABASE app SET search_path = 'nowhere'",
        "ALTER DATABASE app SET intervalstyle = 'sql_standard'",
        "ALTER DATABASE app SET timezone = 'Asia/Kathmandu'",
        "ALTER DATABASE app SET row_security = off",
        "ALTER DATABASE app SET synchronous_commit = off",
    ),
    "read only": ("ALTER ROLE postgres SET default_transaction_read_only = on",),
    "replica": ("ALTER ROLE postgres SET session_replication_role = replica",),
    "serializable": ("ALTER DATABASE app SET default_transaction_isolation = 'serializable'",),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_that_the_clone_inherits_are_refused_or_do_no_harm(
    fleet_own: Lab, kind: str
) -> None:
    run(fleet_own, "a", *SETTINGS[kind], "SELECT pg_reload_conf()")
    decided, _ = choice.choose(fleet_own.topology, [2, 3], "c", Options(5.0, 0.0))
    if decided.handover == "promote":
        assert {one["code"] for one in decided.handover_why or []} == {"apply_settings"}
    fleet_own.start(decided)
    moved(fleet_own)


@pytest.mark.parametrize("step", ["promote", "follow", "open"])
def test_a_slot_that_is_lost_lets_the_clone_be_made_again(fleet_own: Lab, step: str) -> None:
    """`max_slot_wal_keep_size` is tiny, and much is written while nothing reads."""

    def harm() -> None:
        with fleet_own.connect("a") as session:
            if step != "promote":
                for (name,) in fleet_own.ask("c", "SELECT subname::text FROM pg_subscription"):
                    run(fleet_own, "c", f"ALTER SUBSCRIPTION {name} DISABLE")
            lose_slot(session)

    error = fails(fleet_own, start_clone, **{step: harm})
    assert error.hint
    assert fleet_own.put(2)
    with fleet_own.connect("a") as session:
        keep_for_slots(session, "-1")
    fleet_own.resume()
    moved(fleet_own)


@pytest.fixture
def fleet_archiving(fleet_own_bare: Lab, fleet_own_made: Path) -> tuple[Lab, Path]:
    """Give a fleet whose node a archives its WAL, and the archive."""
    fleet = fleet_own_bare
    archive = fleet.directory / "archive"
    archive.mkdir(mode=0o777)
    if (account := accounts.server_account(None)) is not None:
        shutil.chown(archive, account)
    fleet.write()
    fleet.copy_nodes(fleet_own_made)
    fleet.up()
    fleet.put(2)
    run(
        fleet, "a",
        "ALTER SYSTEM SET archive_mode = 'always'",
        f"ALTER SYSTEM SET archive_command = 'cp %p {archive}/%f-$PPID'",
    )  # fmt: skip
    fleet.server("a").stop()
    fleet.server("a").start()
    return fleet, archive


def test_a_clone_writes_nothing_into_the_archive_of_its_source(
    fleet_archiving: tuple[Lab, Path],
) -> None:
    fleet, archive = fleet_archiving
    start_clone(fleet, cutover=lambda: run(fleet, "c", "SELECT pg_switch_wal()"))
    moved(fleet)
    run(fleet, "c", "SELECT pg_switch_wal()", "CHECKPOINT")
    assert [one.name for one in archive.iterdir() if one.name.startswith("00000002")] == []
    assert list((fleet.directory / "nodes/c/pg_wal/archive_status").glob("*.ready")) == []
