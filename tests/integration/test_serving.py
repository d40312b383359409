"""Clients of paused aliases are served again by a real PgBouncer, whoever logs in meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from shardctl.pgbouncer import serving
from shardctl.pgbouncer.console import Console, PoolerLost, resume_command

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from tests.fixtures.servers.pgbouncer import PgBouncer
    from tests.fixtures.servers.postgres import PgServer

RETRY = "15"
"""PgBouncer's own `server_login_retry`, and that of these poolers."""
MANY = 3_000


@contextmanager
def frozen(listed: Callable[[], Collection[int]]) -> Iterator[None]:
    """Stop all processes that are listed for a while, as a machine that hangs."""
    stopped: set[int] = set()
    try:
        # What one of them had started before it was stopped is on the next list.
        while running := set(listed()) - stopped:
            stopped |= running
            _signal(running, signal.SIGSTOP)
        assert stopped, "there is nothing to stop"
        yield
    finally:
        _signal(stopped, signal.SIGCONT)


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def retry(console: Console) -> str:
    return console.config()["server_login_retry"]


def test_commands_go_in_one_packet_and_each_has_its_answer(
    pg_bouncer: PgBouncer, two_servers: Mapping[str, PgServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"own{n}" for n in range(MANY)]
    pg_bouncer.offer(**dict.fromkeys(names, two_servers["a"].port))
    with pg_bouncer.console() as console:
        console.pause("own7", seconds=5)
        with monkeypatch.context() as patched:  # what sends one command after the other
            patched.setattr(console, "send", lambda _: pytest.fail("it is not in the packet"))
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


def test_a_pooler_that_hangs_or_ends_is_lost(pg_bouncer: PgBouncer) -> None:
    with pg_bouncer.console() as console, frozen(lambda: [pg_bouncer.pid]):
        with pytest.raises(PoolerLost):
            console.execute_all(["RELOAD"], seconds=0.3)
        assert console.closed
    with pg_bouncer.console() as console:
        pg_bouncer.stop()
        with pytest.raises(PoolerLost):
            console.execute_all(["RELOAD"], seconds=5)
