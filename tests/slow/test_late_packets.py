"""A command that the network held up does not arrive after shardctl has given it up."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts.local import Local
from shardctl.pgbouncer import serving
from shardctl.pgbouncer.console import PoolerUnavailable
from tests.fixtures.network import namespaces
from tests.fixtures.network.switches import _ip, new_switch
from tests.fixtures.servers.pgbouncer import _CONFIGURATION, PgBouncer, make
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def far(pgbouncer_program: str, server_directory: Path) -> Iterator[tuple[PgBouncer, list[str]]]:
    """Give a PgBouncer on the other side of a network, and words of `ip neigh` for the way."""
    namespaces.require()
    with new_switch() as switch:
        first = namespaces.boot("ip link set lo up; echo up; exec cat > /dev/null", "--net")
        try:
            pid, host = namespaces.inside(first), switch.new_address()
            switch.connect("far", pid, host)
            text = _CONFIGURATION.replace("= 127.0.0.1", f"= {host}")
            made = make(server_directory, program=pgbouncer_program, configuration=text)
            start(made, pid)
            found = dataclasses.replace(made, pooler=dataclasses.replace(made.pooler, host=host))
            wait_for(lambda: answers(found))
            yield found, [host, "dev", f"shardctl{switch.number}"]
        finally:
            namespaces.shut(first)


def start(made: PgBouncer, pid: int) -> None:
    """Start it in the other network, as its server would here."""
    account = made.server.account
    assert account is not None
    made.config.parent.mkdir()
    shutil.chown(made.config.parent, account)
    made.config.write_text(made.server.configuration)
    made.server.users.write_text('"postgres" ""\n')
    made.databases_file.write_text("[databases]\none = host=127.0.0.1 port=1\n")
    enter = ["nsenter", "-t", str(pid), "--net", "runuser", "-u", account, "--"]
    Local().run([*enter, made.server.program, "-d", str(made.config)])


def answers(pooler: PgBouncer) -> bool:
    with contextlib.suppress(PoolerUnavailable), pooler.console() as console:
        return bool(console.version())
    return False


def unsent(pooler: PgBouncer) -> int:
    """Count the connections to the pooler that still have something to send."""
    there = f":{pooler.port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(words[2].endswith(there) and not words[4].startswith("0" * 8) for words in lines)


def test_a_pause_that_was_given_up_does_not_come_after_the_resume(
    far: tuple[PgBouncer, list[str]],
) -> None:
    pooler, way = far
    nowhere = ["lladdr", "02:00:00:00:00:00", "nud", "permanent"]
    with pooler.console() as console:
        _ip("neigh", "replace", *way, *nowhere)
        [found] = serving.pause([([console], ["one"])], seconds=0.5)
        assert found.waiting == ("one",)
    assert unsent(pooler) == 0
    _ip("neigh", "del", *way)
    with pooler.console() as other:
        assert other.resume("one") is False
        assert not other.databases()["one"].paused
