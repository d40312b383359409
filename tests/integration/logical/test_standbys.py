"""Standbys of a stream's source, by slot and by `synchronized_standby_slots`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from shardctl.moves import standbys
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.streams import opened
from tests.integration.logical.test_stream import ACCOUNTS, FILLED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixtures.servers.postgres import PgServer
    from tests.fixtures.servers.streams import Streamed

SLOT = "of_standby"
NAMED = "synchronized_standby_slots"


@contextmanager
def named(streamed: Streamed, setting: str) -> Iterator[None]:
    """Name a slot of a standby that has never connected."""
    session = streamed.source

    def put(value: str) -> None:
        statement = sql.SQL("ALTER SYSTEM SET {} = {}")
        session.execute(statement.format(sql.Identifier(NAMED), sql.Literal(value)))
        session.execute("SELECT pg_reload_conf()")
        wait_for(
            lambda: session.execute("SELECT current_setting(%s)", [NAMED]).fetchone() == (value,)
        )

    session.execute("SELECT pg_create_physical_replication_slot(%s)", [SLOT])
    try:
        put(setting)
        yield
    finally:
        put("")
        session.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])


@pytest.mark.embedded
def test_a_named_standby_is_expected_and_holds_up_failover_slots_alone(
    stream_servers: Callable[[int], tuple[PgServer, PgServer]], tmp_path: Path
) -> None:
    """So a stream without `failover` goes on, and the fence waits for that standby itself."""
    with opened(stream_servers(18), tmp_path) as streamed, named(streamed, SLOT):
        assert standbys.expected(streamed.source) == {SLOT} == standbys.away(streamed.source)
        streamed.make(ACCOUNTS, FILLED)
        streamed.begin()
        streamed.mark()
        streamed.equal("accounts")
        with pytest.raises(standbys.StandbysBehind):
            standbys.await_flushed(streamed.source, "a", [SLOT], "0/0", what="fence", deadline=0.0)
        session = streamed.source
        session.execute(
            "SELECT pg_create_logical_replication_slot('kept', 'pgoutput', failover => true)"
        )
        try:
            session.execute("UPDATE shard2.accounts SET cents = cents + 1")
            session.execute("SET statement_timeout = '1s'")
            with pytest.raises(psycopg.errors.QueryCanceled):
                session.execute(
                    "SELECT pg_logical_slot_get_binary_changes('kept', NULL, NULL,"
                    " 'proto_version', '1', 'publication_names', %s)",
                    [streamed.route.name],
                )
        finally:
            session.execute("RESET statement_timeout")
            session.execute("SELECT pg_drop_replication_slot('kept')")


def test_a_slot_that_was_never_used_is_nobodys_to_promote(streamed: Streamed) -> None:
    streamed.source.execute("SELECT pg_create_physical_replication_slot(%s)", [SLOT])
    try:
        assert standbys.expected(streamed.source) == frozenset()
        streamed.source.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
        streamed.source.execute("SELECT pg_create_physical_replication_slot(%s, true)", [SLOT])
        assert standbys.away(streamed.source) == {SLOT}
    finally:
        streamed.source.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
