"""The fence on every major version: what a transaction has made in a moved schema is waited for."""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from shardctl.access import fence, write_fence
from shardctl.access.fence import FenceRefused, UnloggedMade, WritersLeft
from shardctl.postgres import connection
from shardctl.state import format as formats
from shardctl.state import journal
from shardctl.state.journal import MoveState
from shardctl.topology import names
from tests.fixtures.servers.postgres import local_node, local_topology

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg

    from shardctl.postgres.connection import Connection
    from tests.fixtures.servers.postgres import PgServer, StartServer

MOVE, SCHEMA = "5f3a9c1e", "shard2"
RETIRED = names.retired(SCHEMA, MOVE)
MADE = "SELECT count(*) FROM pg_class WHERE relname = 'made' AND relnamespace = %s::regnamespace"
SHARD = """
CREATE SCHEMA shard2;
CREATE TABLE shard2.photos (id bigint);
CREATE FUNCTION shard2.f() RETURNS integer LANGUAGE sql AS 'SELECT 1';
CREATE TYPE shard2.mood AS ENUM ('good');
CREATE TABLE public.made (id bigint)
"""


@dataclasses.dataclass
class Fenced:
    """A database with one shard, whose move is before its cutover; `session` is shardctl's."""

    session: Connection
    other: psycopg.Connection[tuple[object, ...]]
    """Somebody else's session, in a transaction from its first statement on."""
    read_only: bool = False

    def put_up(self) -> None:
        soon = time.monotonic() + 0.2
        not_after = fence.not_after(self.session, soon + 5)
        found = journal.find(self.session, MOVE)
        assert found is not None
        if self.read_only:
            write_fence.put_up(
                self.session, "a", MOVE, [SCHEMA], revision=found.revision, deadline=soon,
                not_after=not_after,
            )  # fmt: skip
        else:
            fence.put_up(
                self.session, "a", MOVE, revision=found.revision, deadline=soon, not_after=not_after
            )

    def drain(self) -> None:
        now = time.monotonic()
        if self.read_only:
            write_fence.drain(self.session, "a", [SCHEMA], deadline=now)
        else:
            fence.drain(self.session, "a", MOVE, deadline=now)

    def cut(self) -> None:
        """Do the part of a cutover after which no write comes any more."""
        self.put_up()
        self.drain()

    def call_off(self) -> None:
        fence.lift(self.session, MOVE)
        found = journal.find(self.session, MOVE)
        assert found is not None
        assert found.state is MoveState.undone

    def made(self) -> int:
        """Count what is called `made` in the shard, under whichever name that is."""
        schema = SCHEMA if self.read_only else RETIRED
        row = self.session.execute(MADE, [schema]).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture(
    params=[15, *(pytest.param(m, marks=pytest.mark.embedded) for m in (16, 18))], scope="module"
)
def version(request: pytest.FixtureRequest, pg_server: StartServer) -> PgServer:
    return pg_server({"max_prepared_transactions": "2"}, major=request.param)


@pytest.fixture
def fenced(version: PgServer, tmp_path: Path) -> Iterator[Fenced]:
    """Give a database of the test's own."""
    with version.connect() as admin:
        admin.execute("DROP DATABASE IF EXISTS fenced WITH (FORCE)")
        admin.execute("CREATE DATABASE fenced")
        with version.connect("fenced") as made:
            for script in (*formats.scripts(0), SHARD):
                made.execute(script.encode())
        topology = local_topology(tmp_path, local_node(tmp_path, "a", version.port, range(1)))
        database = dataclasses.replace(topology.database, name="fenced")
        with ExitStack() as stack:
            session = stack.enter_context(
                connection.connect(
                    next(iter(topology.nodes.values())), database, purpose="test", autocommit=True
                )
            )
            journal.open_move(
                session, move=MOVE, method="clone", source="a", target="c", shards=[2],
                schemas=[SCHEMA], retired=[RETIRED], plan={},
            )  # fmt: skip
            other = stack.enter_context(version.connect("fenced", autocommit=False))
            write_fence.prepare(session)
            yield Fenced(session, other)
            for (gid,) in session.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                session.execute(f"ROLLBACK PREPARED '{gid}'".encode())


@pytest.fixture(params=[False, True], ids=["rename", "triggers"])
def either(request: pytest.FixtureRequest, fenced: Fenced) -> Fenced:
    """Give it with one of the two fences."""
    fenced.read_only = request.param
    return fenced


MAKING = {
    "table": "CREATE TABLE shard2.made AS SELECT 1 AS id",
    "moved in": "ALTER TABLE public.made SET SCHEMA shard2",
    "view": "CREATE VIEW shard2.made AS SELECT 1 AS id",
    "sequence": "CREATE SEQUENCE shard2.made",
    "row type": "CREATE TYPE shard2.made AS (id bigint)",
}
"""What makes a relation in the shard, and takes no lock there that a write takes."""


@pytest.mark.parametrize("kind", MAKING)
def test_what_is_made_and_not_committed_is_waited_for(either: Fenced, kind: str) -> None:
    either.other.execute(MAKING[kind].encode())
    with pytest.raises((FenceRefused, WritersLeft)):
        either.cut()
    either.call_off()
    either.other.commit()
    either.cut()
    assert either.made() == 1


CHANGING = {
    "dropped": "DROP TABLE shard2.photos",
    "moved out": "ALTER TABLE shard2.photos SET SCHEMA public",
    "index": "CREATE INDEX ON shard2.photos (id)",
    "granted": "GRANT USAGE ON SCHEMA shard2 TO PUBLIC",
    "all dropped": "DROP SCHEMA shard2 CASCADE",
    "value": "ALTER TYPE shard2.mood ADD VALUE 'bad'",
    "function": "DROP FUNCTION shard2.f()",
}
"""What changes something in the shard under a lock of its own."""


@pytest.mark.parametrize("kind", CHANGING)
def test_what_is_changed_and_not_committed_is_waited_for(fenced: Fenced, kind: str) -> None:
    fenced.other.execute(CHANGING[kind].encode())
    with pytest.raises((FenceRefused, WritersLeft)):
        fenced.cut()
    fenced.call_off()
    fenced.other.rollback()
    fenced.cut()


def test_what_a_prepared_transaction_has_made_is_waited_for(either: Fenced) -> None:
    either.other.execute(MAKING["table"].encode())
    either.other.execute("PREPARE TRANSACTION 'made'")
    either.other.rollback()
    with pytest.raises((FenceRefused, WritersLeft)):
        either.cut()
    either.call_off()
    either.session.execute("COMMIT PREPARED 'made'")
    either.cut()
    assert either.made() == 1


def test_what_was_made_unlogged_meanwhile_is_refused(either: Fenced) -> None:
    either.other.execute("CREATE UNLOGGED TABLE shard2.made ()")
    either.other.commit()
    with pytest.raises(UnloggedMade, match=r"made in moved shards became unlogged"):
        either.cut()
    either.call_off()


BINDING = {
    "view": "CREATE VIEW public.bound AS SELECT * FROM shard2.photos",
    "rule": "CREATE RULE bound AS ON INSERT TO public.made DO INSERT INTO shard2.photos VALUES (1)",
    "function": "CREATE FUNCTION public.bound() RETURNS void LANGUAGE sql"
    " BEGIN ATOMIC INSERT INTO shard2.photos VALUES (1); END",
}
"""What is made elsewhere and bound to a table of the shard: it writes there whatever its name."""


@pytest.mark.parametrize("kind", BINDING)
def test_who_binds_something_elsewhere_to_the_shard_is_waited_for(
    fenced: Fenced, kind: str
) -> None:
    fenced.other.execute(BINDING[kind].encode())
    with pytest.raises((FenceRefused, WritersLeft)):
        fenced.cut()
    fenced.call_off()
    fenced.other.rollback()
    fenced.cut()


def test_who_only_reads_is_not_waited_for(either: Fenced) -> None:
    either.other.execute("SELECT FROM shard2.photos")
    either.cut()


def test_who_makes_things_elsewhere_is_not_waited_for(either: Fenced) -> None:
    either.other.execute("CREATE TABLE public.other (id bigint); CREATE TEMP TABLE t (id bigint)")
    either.cut()


def test_who_makes_a_table_before_the_decision_is_seen_by_the_last_look(fenced: Fenced) -> None:
    fenced.read_only = True
    fenced.cut()
    fenced.other.execute(MAKING["table"].encode())
    with pytest.raises(FenceRefused, match="not committed"):
        fenced.drain()
    fenced.other.commit()
    with pytest.raises(write_fence.TablesUncovered, match=r"shard2\.made"):
        fenced.drain()
