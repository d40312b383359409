"""Messages that a server carries out while their sender does something else."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from shardctl.libpq import Sent
from shardctl.postgres.logical.copying import Pipe

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet


def test_a_message_is_carried_out_before_its_answer_is_awaited(fleet_8: Fleet) -> None:
    with fleet_8.connect("a") as session, fleet_8.connect("a") as other:
        other.execute("SELECT pg_advisory_lock(1)")
        sent = Sent(session, sql.SQL("SELECT pg_advisory_lock(1); SELECT 'got it'"))
        other.execute("SELECT pg_advisory_unlock(1)")
        assert sent.rows()[-1] == [("got it",)]


def test_a_server_that_hangs_is_given_up(fleet_8: Fleet) -> None:
    session = fleet_8.connect("a")
    sent = Sent(session, sql.SQL("SELECT pg_sleep(60)"))
    with pytest.raises(psycopg.OperationalError, match="within"):
        sent.rows(seconds=0.1)
    assert session.closed


def test_a_process_with_many_files_open_sends_and_copies(fleet_8: Fleet) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.callback(os.close, os.dup(0))
        source, target = (stack.enter_context(fleet_8.connect("a")) for _ in range(2))
        assert source.fileno() > 1024
        assert Sent(source, sql.SQL("SELECT pg_sleep(0.01), 1")).rows() == [[("", "1")]]
        target.execute("CREATE TEMPORARY TABLE arrived (number int)")
        out = sql.SQL("COPY (SELECT n FROM generate_series(1, 9) AS n) TO STDOUT").format()
        into = sql.SQL("COPY arrived FROM STDIN").format()
        Pipe(source, target, lambda: False).copy(out, into, lambda _: None)
        assert target.execute("SELECT sum(number) FROM arrived").fetchone() == (45,)
