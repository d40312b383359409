"""Messages that a server carries out while their sender does something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from shardctl.postgres.sending import Sent

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet


def test_rows_of_every_statement_come_as_the_server_writes_them(fleet_8: Fleet) -> None:
    with fleet_8.connect("a") as session:
        sent = Sent(session, sql.SQL("BEGIN; SELECT 1, NULL; COMMIT; SELECT true WHERE false"))
        assert sent.rows() == [[], [("1", None)], [], []]
        assert session.execute("SELECT 2").fetchall() == [(2,)]


def test_a_message_is_carried_out_before_its_answer_is_awaited(fleet_8: Fleet) -> None:
    with fleet_8.connect("a") as session, fleet_8.connect("a") as other:
        other.execute("SELECT pg_advisory_lock(1)")
        sent = Sent(session, sql.SQL("SELECT pg_advisory_lock(1); SELECT 'got it'"))
        other.execute("SELECT pg_advisory_unlock(1)")
        assert sent.rows()[-1] == [("got it",)]


def test_an_error_ends_the_message_and_leaves_the_session_of_use(fleet_8: Fleet) -> None:
    with fleet_8.connect("a") as session:
        sent = Sent(session, sql.SQL("BEGIN; SELECT 1 / 0; COMMIT; SELECT 1"))
        with pytest.raises(psycopg.errors.DivisionByZero):
            sent.rows()
        assert session.execute("SELECT 2").fetchall() == [(2,)]


def test_a_session_that_is_lost_meanwhile_says_so(fleet_8: Fleet) -> None:
    session = fleet_8.connect("a")
    sent = Sent(session, sql.SQL("SELECT pg_sleep(60)"))
    with fleet_8.connect("a") as other:
        other.execute("SELECT pg_terminate_backend(%s)", [session.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        sent.rows()
    assert session.closed
