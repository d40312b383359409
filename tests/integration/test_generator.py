"""The generator on a real server: whatever happens, ids are distinct and increase."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import errors

from shardctl.ids import generator, times
from shardctl.ids.layout import INSTAGRAM_EPOCH_MS, Layout
from shardctl.provision import shard as provision
from shardctl.provision.plan import ShardWork
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.fixtures.servers.postgres import PgServer, StartServer

    Connection = psycopg.Connection[Any]

# 25 bits of seconds are a year: it began some months ago.
SMALL = Layout(
    int(datetime.now(UTC).timestamp()) * 1000 - 10**10,
    tick_ms=1000,
    time_bits=25,
    shard_bits=2,
    sequence_bits=5,
)
ONE_BIT = Layout(sequence_bits=1)
FOUR_BITS = Layout(sequence_bits=4)
WIDE = Layout(epoch_ms=0, time_bits=42, shard_bits=13, sequence_bits=9)
ROLE = "application"


@dataclass(frozen=True, slots=True)
class Installed:
    """A database with the generator and shard 1."""

    server: PgServer

    def connect(self, **options: Any) -> Connection:
        # A generator that went wrong may draw for ever: that shall fail and not hang.
        return self.server.connect("ids", options="-c statement_timeout=60s", **options)

    def ask(self, query: str) -> Any:
        with self.connect() as session:
            return ask(session, query)


@pytest.fixture(scope="module")
def server(pg_server: StartServer) -> PgServer:
    started = pg_server()
    with started.connect() as session:
        session.execute(f"CREATE ROLE {ROLE} LOGIN".encode())
    return started


def install(server: PgServer, layout: Layout, kind: str = "strict") -> Installed:
    """Make the database, in place of that of the test before."""
    work = ShardWork(
        ShardId(1), "shard1", create=True, sequences="create", wrapper="create", grant_to=(ROLE,)
    )  # fmt: skip
    with server.connect() as session:
        session.execute("DROP DATABASE IF EXISTS ids WITH (FORCE)")
        session.execute("CREATE DATABASE ids")
    with server.connect("ids", autocommit=False) as session:
        session.execute("CREATE SCHEMA shardctl")
        session.execute("CREATE TABLE shardctl.map (shard int, schema name, node text)")
        session.execute("CREATE TABLE shardctl.cluster ()")
        session.execute(f"GRANT USAGE ON SCHEMA shardctl TO {ROLE}".encode())
        session.execute(generator.render(layout, kind, 8).encode())
        session.execute("INSERT INTO shardctl.map VALUES (1, 'shard1', 'a')")
        session.execute(provision.script(work))
    return Installed(server)


def ask(session: Connection, query: str, *values: object) -> Any:
    row = session.execute(query.encode(), values or None).fetchone()
    assert row is not None
    return row[0]


def ids(session: Connection, count: int) -> list[int]:
    query = f"SELECT shard1.next_id() FROM generate_series(1, {count})"
    return [row[0] for row in session.execute(query.encode())]


def at_once(works: Sequence[Callable[[], list[int]]]) -> list[list[int]]:
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(60) for future in [pool.submit(work) for work in works]]


def assert_sound(per_session: list[list[int]]) -> None:
    """Check that no two ids are equal and that each session's strictly increase."""
    for made in per_session:
        assert all(a < b for a, b in itertools.pairwise(made))
    everything = list(itertools.chain.from_iterable(per_session))
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize(
    ("layout", "count"), [(Layout(), 5_000), (ONE_BIT, 250)], ids=["default", "1 bit"]
)
def test_concurrent_sessions_of_one_shard_never_get_an_id_twice(
    server: PgServer, layout: Layout, count: int
) -> None:
    database = install(server, layout)
    before = now_ms(database)

    def work() -> list[int]:
        with database.connect() as session:
            return ids(session, count)

    per_session = at_once([work] * 8)
    assert_sound(per_session)
    decoded = [layout.decode(one) for made in per_session for one in made]
    assert {one.shard for one in decoded} == {1}
    assert min(one.time_ms for one in decoded) >= before
    # A burst runs ahead of the clock by at most one tick for each block.
    blocks = 8 * count // (1 << layout.sequence_bits) + 1
    assert max(one.time_ms for one in decoded) <= now_ms(database) + blocks
    assert len({one.sequence for one in decoded}) == 1 << layout.sequence_bits


def now_ms(database: Installed) -> int:
    moment = database.ask("SELECT clock_timestamp()")
    assert isinstance(moment, datetime)
    return times.parse(moment.isoformat())


def test_raising_the_time_while_others_draw_gives_no_id_twice(server: PgServer) -> None:
    database = install(server, FOUR_BITS)
    done = threading.Event()

    def work() -> list[int]:
        with database.connect() as session:
            return [one for _ in range(20) for one in ids(session, 200)]

    def raise_it() -> list[int]:
        returned = []
        with database.connect() as session:
            while not done.is_set():
                returned.append(ask(session, "SELECT shardctl.open_block(1)"))
        assert all(a < b for a, b in itertools.pairwise(returned))
        return []

    with ThreadPoolExecutor(1) as pool:
        raising = pool.submit(raise_it)
        try:
            per_session = at_once([work] * 6)
        finally:
            done.set()
        raising.result(10)
    assert_sound(per_session)


@pytest.mark.parametrize("layout", [SMALL, WIDE], ids=["32 bits", "wide"])
def test_the_helpers_agree_with_python(server: PgServer, layout: Layout) -> None:
    database = install(server, layout)
    chosen = random.Random(1)  # noqa: S311  # samples, not secrets
    numbers = [chosen.randint(0, layout.highest_id) for _ in range(300)] + [0, layout.highest_id]
    if layout.bits == 64:
        numbers += [chosen.randint(layout.lowest_id, -1) for _ in range(100)]
    query = (
        "SELECT id, shardctl.id_time(id), shardctl.id_shard(id), shardctl.id_sequence(id), "
        "shardctl.id_floor(shardctl.id_time(id) + interval '0.9 ms', shardctl.id_shard(id)), "
        "shardctl.id_floor(shardctl.id_time(id)) FROM unnest(%s::bigint[]) AS id "
        "WHERE id >= 0 OR %s"
    )
    with database.connect() as session:
        session.execute("SET timezone = 'Asia/Kathmandu'")
        for number, moment, shard, sequence, *_ in session.execute(
            query.replace("shardctl.id_floor", "concat").encode(), (numbers, True)
        ):
            time_ms = times.parse(moment.isoformat())
            assert moment.microsecond % 1000 == 0
            assert (time_ms, shard, sequence) == layout.decode(number)
        for number, _, shard, _, floor, any_floor in session.execute(
            query.encode(), (numbers, False)
        ):
            time_ms = layout.decode(number).time_ms
            assert floor == layout.encode(time_ms, shard)
            assert any_floor == layout.encode(time_ms)


@pytest.mark.parametrize("layout", [ONE_BIT, SMALL], ids=["1 bit", "32 bits"])
def test_an_opened_block_is_above_everything_before(server: PgServer, layout: Layout) -> None:
    database = install(server, layout)
    with database.connect() as session:
        made: list[int] = []
        register = [-1]
        for ahead in (None, timedelta(hours=2), None, -timedelta(days=400), timedelta(hours=1)):
            now = datetime.fromtimestamp(now_ms(database) / 1000, UTC)
            not_before = None if ahead is None else now + ahead
            returned = ask(session, "SELECT shardctl.open_block(1, %s)", not_before)
            assert returned > now - timedelta(milliseconds=layout.tick_ms)
            assert not_before is None or returned > not_before
            assert not made or times.parse(returned.isoformat()) > layout.decode(made[-1]).time_ms
            time_mask = (1 << layout.usable_time_bits) - 1
            register.append(
                ask(session, "SELECT pg_sequence_last_value('shard1.next_id_block')") & time_mask
            )
            assert register[-1] > register[-2]
            made += ids(session, 5)
            assert layout.decode(made[-5]).time_ms >= times.parse(returned.isoformat())
    assert_sound([made])


@pytest.mark.parametrize("kind", ["strict", "classic"])
def test_used_up_time_is_an_error_and_never_a_negative_id(server: PgServer, kind: str) -> None:
    ended = install(
        server, Layout(INSTAGRAM_EPOCH_MS, time_bits=38, shard_bits=16, sequence_bits=10), kind
    )
    with pytest.raises((errors.SequenceGeneratorLimitExceeded, errors.NumericValueOutOfRange)):
        ended.ask("SELECT shard1.next_id()")
    if kind == "strict":
        with pytest.raises(errors.SequenceGeneratorLimitExceeded):
            ended.ask("SELECT shardctl.open_block(1)")


def _evil() -> str:
    """Shadow everything that the generator's functions use."""
    parts = ["CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC;"]

    def function(name: str, arguments: str, result: str) -> None:
        parts.append(
            f"CREATE FUNCTION evil.{name}({arguments}) RETURNS {result} LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE 'evil'; END $$;"
        )

    for number, (operator, result) in enumerate(
        [(o, "int8") for o in (">>", "<<", "&", "|", "+", "-", "*", "/")]
        + [(o, "bool") for o in ("=", "<=", ">", "<", ">=")]
    ):
        for left, right in itertools.product(("int8", "float8", "numeric"), ("int8", "int4")):
            name = f"f{number}_{left}_{right}"
            function(name, f"pg_catalog.{left}, pg_catalog.{right}", f"pg_catalog.{result}")
            parts.append(
                f"CREATE OPERATOR evil.{operator} (FUNCTION = evil.{name}, "
                f"LEFTARG = pg_catalog.{left}, RIGHTARG = pg_catalog.{right});"
            )
    for name, arguments, result in [
        ("nextval", "regclass", "int8"),
        ("setval", "regclass, int8", "int8"),
        ("pg_sequence_last_value", "regclass", "int8"),
        ("clock_timestamp", "", "timestamptz"),
        ("date_part", "text, timestamptz", "float8"),
        ("extract", "text, timestamptz", "numeric"),
        ("extract", "text, timestamp", "numeric"),
        ("timezone", "text, timestamptz", "timestamp"),
        ("floor", "float8", "float8"),
        ("floor", "numeric", "numeric"),
        ("to_timestamp", "float8", "timestamptz"),
    ]:
        function(name, arguments, result)
    parts += [f"CREATE DOMAIN evil.{name} AS text;" for name in ("regclass", "timestamptz", "oid")]
    return "\n".join(parts)


HOSTILE = _evil()


@pytest.mark.parametrize("kind", ["strict", "classic"])
def test_a_hostile_search_path_of_an_ordinary_role_changes_nothing(
    server: PgServer, kind: str
) -> None:
    database = install(server, FOUR_BITS, kind)
    with database.connect() as session:
        session.execute(HOSTILE.encode())
    with database.connect(user=ROLE) as session:
        session.execute("SET search_path = evil, pg_catalog, pg_temp")
        for broken in ("1::pg_catalog.int8 >> 1", "1::pg_catalog.int8 & 1::pg_catalog.int8"):
            with pytest.raises(errors.RaiseException, match="evil"):
                session.execute(f"SELECT {broken}".encode())
        with pytest.raises(errors.RaiseException, match="evil"):
            session.execute("SELECT nextval('shard1.next_id_seq')")
        made = ids(session, 100)
        if kind == "strict":
            assert_sound([made])
        assert [FOUR_BITS.decode(one).sequence for one in made] == [n % 16 for n in range(100)]
        one = made[-1]
        time, shard, sequence = FOUR_BITS.decode(one)
        assert ask(session, f"SELECT shardctl.id_shard({one})") == shard == 1
        assert ask(session, f"SELECT shardctl.id_sequence({one})") == sequence
        moment = ask(session, f"SELECT shardctl.id_time({one})")
        assert times.parse(moment.isoformat()) == time
        assert ask(session, f"SELECT shardctl.id_floor('{moment}', 1)") == FOUR_BITS.encode(time, 1)
    with database.connect() as session:
        session.execute("SET search_path = evil, pg_catalog, pg_temp")
        later = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
        raised = ask(session, f"SELECT shardctl.open_block(1, '{later}')")
        assert raised == later + timedelta(milliseconds=1)


def test_ids_around_crashes_are_distinct(server: PgServer) -> None:
    database = install(server, ONE_BIT)
    with database.connect() as session:
        session.execute("CREATE TABLE shard1.t (id bigint DEFAULT shard1.next_id(), round int)")
    written: list[int] = []

    def write(number: int, started: threading.Barrier) -> list[int]:
        query = f"INSERT INTO shard1.t (round) VALUES ({number}) RETURNING id"
        made: list[int] = []
        with contextlib.suppress(psycopg.OperationalError), database.connect() as session:
            # Time runs ahead of the clock, so that a register that fell back would be seen.
            session.execute("INSERT INTO shard1.t (round) SELECT -1 FROM generate_series(1, 1000)")
            while True:
                made.append(ask(session, query))
                if len(made) == 20:
                    started.wait(120)
        return made

    for number in range(3):
        started = threading.Barrier(5)
        with ThreadPoolExecutor(4) as pool:
            writers = [pool.submit(write, number, started) for _ in range(4)]
            try:
                started.wait(120)
            finally:
                database.server.stop("immediate")
                for writer in writers:
                    writer.exception(30)
                database.server.start()
            for writer in writers:
                made = writer.result()
                assert all(a < b for a, b in itertools.pairwise(made))
                written += made
    assert len(set(written)) == len(written)
    with database.connect() as session:
        ids(session, 500)
        session.execute("INSERT INTO shard1.t (round) SELECT -2 FROM generate_series(1, 1000)")
        assert ask(session, "SELECT count(*) - count(DISTINCT id) FROM shard1.t") == 0
        kept = {row[0] for row in session.execute("SELECT id FROM shard1.t WHERE round >= 0")}
        assert kept >= set(written)
        last = "SELECT max(id) FILTER (WHERE round >= -1) < min(id) FILTER (WHERE round = -2)"
        assert ask(session, f"{last} FROM shard1.t")
