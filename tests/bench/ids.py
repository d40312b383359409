"""How fast next_id() is, and whether ids repeat, beside the published function."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.bench import fleet
from tests.bench.measure import Row, per, say, seconds, timed, versus
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.fleet import Fleet
    from tests.bench.measure import Scale, Side

SHARD = 5
SHARDS = 8
SESSIONS = 16
BARRIER = 20_110_824  # any number: the key of the lock that all sessions wait for

# The function of Instagram's "Sharding & IDs at Instagram" as it was published, but for the
# schema's name and a line's end. Nothing is tidied up: that is what fleets run.
PUBLISHED = """
CREATE SCHEMA insta5;
CREATE SEQUENCE insta5.table_id_seq;
CREATE OR REPLACE FUNCTION insta5.next_id(OUT result bigint) AS $$
DECLARE
    our_epoch bigint := 1314220021721;
    seq_id bigint;
    now_millis bigint;
    shard_id int := 5;
BEGIN
    SELECT nextval('insta5.table_id_seq') % 1024 INTO seq_id;
    SELECT FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) INTO now_millis;
    result := (now_millis - our_epoch) << 23;
    result := result | (shard_id << 10);
    result := result | (seq_id);
END;
$$ LANGUAGE PLPGSQL;
GRANT USAGE ON SCHEMA insta5 TO app;
GRANT USAGE, SELECT, UPDATE ON SEQUENCE insta5.table_id_seq TO app;
"""

OURS = f"shard{SHARD}.next_id()"
THEIRS = "insta5.next_id()"


def one_session(scale: Scale) -> list[Row]:
    """Time one id in one session, as the role `app`, which is not a superuser.

    Fair: the same query for both, in one warm session of one server; the cost of the query
    around the function (generate_series, count) is left in on both sides, which brings the
    ratio nearer to 1, against us.
    """
    ids, rounds = scale.of(200_000, 2_000), scale.of(9, 2)
    with fleet.running(1) as running:
        _make(running)
        with running.connect() as connection:

            def many(expression: str) -> Side:
                query = f"SELECT count({expression}) FROM generate_series(1, {ids})".encode()
                return timed(lambda: connection.execute(query))

            sides = {expression: many(expression) for expression in (OURS, THEIRS)}
            name, against = "next_id() strict, one session", {THEIRS: ("published", 0.5)}
            return versus(name, sides, rounds, against, per(ids, "id"), warm=True)


def many_sessions(scale: Scale) -> list[Row]:
    """Count ids that repeat when 16 sessions draw from one shard at once.

    Fair: both sides make the same number of ids in the same number of real sessions (psql
    processes), let go at one instant by a lock that all wait for, on the same server by
    turns. COPY writes them to files, and every single one is compared. The published
    function's count is chance, so all rounds are added up; ours has to be 0 in all of them.
    """
    ids, rounds = scale.of(200_000, 2_000), scale.of(3, 1)
    repeated = {OURS: 0, THEIRS: 0}
    made = {OURS: 0, THEIRS: 0}
    with fleet.running(1) as running:
        _make(running)

        def draw(expression: str) -> Side:
            def side() -> float:
                took, drawn = _draw(running, expression, ids)
                repeated[expression] += len(drawn) - len(set(drawn))
                made[expression] += len(drawn)
                say(f"{expression}: {repeated[expression]} of {made[expression]} ids repeated")
                return took

            return side

        what = f"{SESSIONS} sessions x {ids:,} ids, one shard"
        sides = {expression: draw(expression) for expression in (OURS, THEIRS)}
        took = versus(f"{what}: time", sides, rounds, {THEIRS: ("published", None)}, seconds)
    if made[OURS] != SESSIONS * ids * rounds or made[OURS] != made[THEIRS]:
        raise RuntimeError(f"{made} ids were made")
    return [
        Row(
            f"{what}: duplicates",
            f"{repeated[OURS]:,}",
            f"published {repeated[THEIRS]:,}",
            target="0",
            met=repeated[OURS] == 0,
            note=f"of {made[OURS]:,} ids each, in {rounds} runs",
        ),
        *took,
    ]


def _make(running: Fleet) -> None:
    running.init(SHARDS)
    with running.connect(user="postgres") as connection:
        connection.execute(PUBLISHED.encode())


def _draw(running: Fleet, expression: str, ids: int) -> tuple[float, list[bytes]]:
    """Draw ids in all sessions at once; give the time from the common start, and the ids."""
    wait = f"SELECT pg_advisory_lock_shared({BARRIER})"
    copy = f"COPY (SELECT {expression} FROM generate_series(1, {ids})) TO STDOUT"
    command = [*running.psql(), "-t", "-A", "-c", wait, "-c", copy]
    outputs: list[Path] = [running.directory / f"ids.{number}" for number in range(SESSIONS)]
    with running.connect() as gate:
        gate.execute("SELECT pg_advisory_lock(%s)", [BARRIER])
        with fleet.together([command] * SESSIONS, outputs) as processes:

            def all_wait() -> bool:
                if any(process.poll() is not None for process in processes):
                    raise RuntimeError("a session ended before the start")
                [(waiting,)] = gate.execute(
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                )
                return bool(waiting == SESSIONS)

            wait_for(all_wait)
            began = time.perf_counter()
            gate.execute("SELECT pg_advisory_unlock(%s)", [BARRIER])
            fleet.wait_all(processes)
            took = time.perf_counter() - began
    # pg_advisory_lock_shared() answers with an empty line, which split() leaves out.
    return took, [number for file in outputs for number in file.read_bytes().split()]
