"""`moves doctor` drops nothing that is not shardctl's, run by a superuser or an ordinary role."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from shardctl.moves import plan
from shardctl.postgres import connection
from shardctl.state import journal
from shardctl.state.journal import MoveState
from tests.fixtures.fleets.fleet import PHOTOS, Fleet, open_move
from tests.fixtures.fleets.verify import SAFE
from tests.fixtures.servers.postgres import SUPERUSER

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.postgres.connection import Connection
    from tests.fixtures.servers.postgres import StartServer

ENDED, OPEN, ELSEWHERE = "5f3a9c1e", "0badcafe", "deadbeef"
SETTINGS = SAFE | {"wal_level": "logical", "max_replication_slots": "20"}
OPERATOR = "operator"
OTHER = "anothers"
"""Another database on each server."""

SIMILAR = ("shardctl_x", "shardctl_5f3a9c1", "shardctl_5f3a9c1ez", "my_shardctl_5f3a9c1e")
"""Names that look like those of moves, and are not."""

_HERE = {
    "slot": "SELECT slot_name::text FROM pg_replication_slots",
    "subscription": "SELECT subdbid::text || subname FROM pg_subscription",
    "role": "SELECT rolname::text FROM pg_roles WHERE rolname ~ 'shardctl_'",
    "origin": "SELECT roname FROM pg_replication_origin",
}
_IN_DATABASE = {
    "publication": "SELECT pubname::text FROM pg_publication",
    "schema": "SELECT nspname::text FROM pg_namespace WHERE nspname !~ '^pg_'",
    "function": "SELECT oid::regprocedure::text FROM pg_proc WHERE proname ~ 'shardctl_'",
    "trigger": "SELECT tgrelid::regclass || tgname FROM pg_trigger WHERE NOT tgisinternal",
    "move": "SELECT DISTINCT move FROM shardctl.stream",
}


@dataclass
class Operated(Fleet):
    """A fleet that shardctl runs as a role of the test's choice."""

    user: str = SUPERUSER

    def write(self) -> Path:
        file = super().write()
        text = file.read_text().replace("database:\n", f"database:\n  user: {self.user}\n", 1)
        file.write_text(text)
        return file

    def own(self, node: str) -> Connection:
        """Log in as shardctl does."""
        topology = self.topology()
        [found] = [one for one in topology.nodes.values() if one.name == node]
        return connection.connect(found, topology.database, purpose="test", autocommit=True)

    def doctor(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        run = self.here("moves", "doctor", "-o", "json", *arguments)
        return run.returncode, json.loads(run.stdout), run.stderr

    def all_there_is(self) -> set[tuple[str, str, str, str]]:
        """Name everything on both servers that could be taken for a move's."""
        found = set()
        for node, server in self.servers.items():
            for database in (self.database, OTHER):
                with server.connect(database) as session:
                    for kind, query in (_HERE | _IN_DATABASE).items():
                        if kind == "move" and database == OTHER:
                            continue
                        where = "" if kind in _HERE else database
                        found |= {
                            (node, where, kind, name) for (name,) in session.execute(query.encode())
                        }
        return found


@pytest.fixture(params=[15, pytest.param(18, marks=pytest.mark.embedded)])
def major(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[SUPERUSER, OPERATOR])
def doctored(
    request: pytest.FixtureRequest, pg_server: StartServer, major: int, tmp_path: Path
) -> Operated:
    """Give a fleet beside another database, each with objects of three kinds of owners."""
    servers = {name: pg_server(SETTINGS, major=major) for name in "ab"}
    more = ", pg_create_subscription" if major > 15 else ""
    for server in servers.values():
        with server.connect() as session:
            for statement in (
                f"CREATE ROLE {OPERATOR} LOGIN REPLICATION",
                f"GRANT pg_monitor, pg_signal_backend{more} TO {OPERATOR}",
                "CREATE ROLE doctored LOGIN",
                f"CREATE DATABASE {OTHER}",
                f"CREATE DATABASE doctored OWNER {request.param}",
            ):
                session.execute(statement.encode())
    fleet = Operated(tmp_path, servers, "doctored", "doctored", user=request.param)
    fleet.migration("0001_photos.sql", PHOTOS)
    fleet.init()
    return fleet


def _of(statement: str, name: str) -> sql.Composed:
    return sql.SQL(statement).format(sql.Identifier(name))


def record(fleet: Operated, move: str, shard: int, *, ended: bool) -> None:
    for node in "ab":
        with closing(fleet.own(node)) as session:
            open_move(session, move, [shard], method=plan.STREAM)
            if ended:
                journal.advance(session, move, [MoveState.reserved], MoveState.aborted)


def make_as_a_move(fleet: Operated, move: str, shard: int) -> None:
    """Make what a streamed move of a shard makes on both nodes."""
    name = journal.slot(move)
    with closing(fleet.own("a")) as source:
        source.execute(_of("CREATE PUBLICATION {}", name))
        source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    with closing(fleet.own("b")) as target:
        target.execute(f"CREATE SCHEMA shard{shard}".encode())
        target.execute(
            "INSERT INTO shardctl.stream (move, attempt, what) VALUES (%s, 0, 'making')", [move]
        )
        target.execute(
            f"CREATE FUNCTION shardctl.{name}_claim(given jsonb) RETURNS boolean"
            " LANGUAGE sql AS 'SELECT true'".encode()
        )
    subscribe(fleet.connect("b"), name)  # a superuser's, as before 16 it has to be


def subscribe(session: psycopg.Connection[Any], name: str) -> None:
    statement = (
        "CREATE SUBSCRIPTION {} CONNECTION 'host=nowhere' PUBLICATION p WITH (connect = false)"
    )
    with session:
        session.execute(_of(statement, name))


def make_by_hand(fleet: Operated) -> None:
    """Make what is nobody's business of shardctl, with names like those of moves."""
    for node, server in fleet.servers.items():
        with server.connect("doctored") as session:
            for name in SIMILAR:
                session.execute(_of("CREATE PUBLICATION {}", name))
                session.execute(_of("CREATE ROLE {}", name))
                session.execute(_of("CREATE FUNCTION public.{}() RETURNS int"
                                    " LANGUAGE sql AS 'SELECT 1'", name))  # fmt: skip
                subscribe(server.connect("doctored"), name)
            session.execute("SELECT pg_create_logical_replication_slot('shardctl_x', 'pgoutput')")
            session.execute(b"CREATE TABLE public.shardctl_copy (id int)")
            session.execute(
                b"CREATE TRIGGER shardctl_copy BEFORE UPDATE ON public.shardctl_copy"
                b" FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
            )
            # Of the whole server, and of no move that this cluster knows.
            session.execute("SELECT pg_create_physical_replication_slot(%s)",
                            [f"shardctl_{ELSEWHERE}"])  # fmt: skip
            session.execute(_of("CREATE ROLE {}", f"shardctl_{ELSEWHERE}"))
        with server.connect(OTHER) as session:
            # Another cluster's moves, and what has the very names of moves of this one.
            elsewhere = f"shardctl_{ENDED}_{node}"
            session.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')",
                            [elsewhere])  # fmt: skip
            for move in (ENDED, OPEN, ELSEWHERE):
                session.execute(_of("CREATE PUBLICATION {}", f"shardctl_{move}"))
                subscribe(server.connect(OTHER), f"shardctl_{move}")


def test_the_doctor_clears_what_is_an_ended_moves_and_nothing_else(doctored: Operated) -> None:
    record(doctored, ENDED, 2, ended=True)
    record(doctored, OPEN, 3, ended=False)
    before = doctored.all_there_is()
    make_as_a_move(doctored, ENDED, 2)
    ended = doctored.all_there_is() - before
    make_as_a_move(doctored, OPEN, 3)
    make_by_hand(doctored)
    everything = doctored.all_there_is()

    code, answer, told = doctored.doctor("--dry-run")
    assert code == 0, told
    stays = {one["kind"] for one in answer["left"] if not one["cleared"]}
    assert stays == {"slot", "role"}
    assert {one["move"] for one in answer["left"] if not one["cleared"]} == {ELSEWHERE}
    clears = {(one["kind"], one["move"]) for one in answer["left"] if one["cleared"]}
    kinds = ("slot", "publication", "subscription", "schema", "function", "records")
    assert clears == {(kind, ENDED) for kind in kinds}

    code, _, told = doctored.doctor("--yes")
    if doctored.user == SUPERUSER:
        assert code == 0, told
    else:
        # What the role may not drop is named, and stays with the move's rows; all else is cleared.
        assert code == 3
        assert f"subscription shardctl_{ENDED}: must be owner of subscription" in told
        stay = {one for one in ended if one[2] in ("subscription", "origin", "move")}
        assert everything - doctored.all_there_is() == ended - stay
        doctored.user = SUPERUSER
        code, _, told = doctored.doctor("--yes")
        assert code == 0, told
    assert everything - doctored.all_there_is() == ended
    assert doctored.all_there_is() <= everything
    for _ in range(2):
        code, answer, told = doctored.doctor("--yes")
        assert code == 0, told
        assert {one["move"] for one in answer["left"]} == {ELSEWHERE}
