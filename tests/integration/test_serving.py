"""Clients of paused aliases are served again by a real PgBouncer, whoever logs in meanwhile."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.pgbouncer import serving
from shardctl.pgbouncer.console import Console, PoolerLost, resume_command
from tests.fixtures.moves.harm import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.fixtures.servers.pgbouncer import PgBouncer
    from tests.fixtures.servers.postgres import PgServer

RETRY = "15"
"""PgBouncer's own `server_login_retry`, and that of these poolers."""
MANY = 3_000


class Login:
    """A client that logs in, asks one thing, and notes when it was answered."""

    def __init__(self, pooler: PgBouncer, alias: str) -> None:
        self.answered: list[float] = []
        self.error: psycopg.Error | None = None
        self._thread = threading.Thread(target=self._run, args=(pooler, alias), daemon=True)
        self._thread.start()

    def _run(self, pooler: PgBouncer, alias: str) -> None:
        try:
            with pooler.connect(alias, connect_timeout=60) as session:
                session.execute("SELECT 1")
        except psycopg.Error as error:
            self.error = error
        self.answered.append(time.monotonic())

    def waits(self, console: Console, alias: str) -> bool:
        found = [p for p in console.pools() if p["database"] == alias]
        return any(int(p["cl_waiting"] or 0) for p in found) and not self.answered

    def after(self, since: float) -> float:
        """Give when it was answered, in seconds since then."""
        self._thread.join(120)
        assert self.error is None
        return self.answered[0] - since


def retry(console: Console) -> str:
    return console.config()["server_login_retry"]


def used(pooler: PgBouncer, alias: str) -> None:
    with pooler.connect(alias) as session:
        session.execute("SELECT 1")


def test_commands_go_in_one_packet_and_each_has_its_answer(
    pg_bouncer: PgBouncer, two_servers: Mapping[str, PgServer]
) -> None:
    names = [f"own{n}" for n in range(MANY)]
    pg_bouncer.offer(**dict.fromkeys(names, two_servers["a"].port))
    with pg_bouncer.console() as console:
        console.pause("own7", seconds=5)
        refused = serving.begin(console, [*names, "nosuch"], reload=True)
        assert len(refused) == MANY
        assert [one.command for one in refused if not one.not_paused] == [resume_command("nosuch")]
        assert resume_command("own7") not in [one.command for one in refused]
        assert not console.databases()["own7"].paused  # the session is as it was
        serving.end(console, "")
        assert retry(console) == RETRY  # RELOAD has put it back
    log = pg_bouncer.log()
    first, second = (log.index(f"RESUME '{name}' command") for name in ("own0", "own1"))
    assert log.rindex("RELOAD command", 0, first) < first < second


def test_a_retry_that_is_short_already_is_put_back_by_a_reload(pg_bouncer: PgBouncer) -> None:
    with pg_bouncer.console() as console:
        serving.begin(console, [], reload=False)
    with pg_bouncer.console() as console:  # whoever did that has died
        assert serving.retry_of(console) == ""
        serving.begin(console, [], reload=False)
        serving.end(console, serving.retry_of(console))
        assert retry(console) == RETRY


def test_a_pooler_that_hangs_or_ends_is_lost(pg_bouncer: PgBouncer) -> None:
    with pg_bouncer.console() as console, frozen(lambda: [pg_bouncer.pid]):
        with pytest.raises(PoolerLost):
            console.execute_all(["RELOAD"], seconds=0.3)
        assert console.closed
    with pg_bouncer.console() as console:
        pg_bouncer.stop()
        with pytest.raises(PoolerLost):
            console.execute_all(["RELOAD"], seconds=5)
