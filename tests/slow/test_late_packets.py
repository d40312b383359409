"""A command that the network held up does not arrive after shardctl has given it up."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts.local import Local
from shardctl.pgbouncer import batch
from shardctl.pgbouncer.console import PoolerLost, PoolerUnavailable
from tests.fixtures.network.switches import take_number
from tests.fixtures.servers.pgbouncer import _CONFIGURATION, PgBouncer, make
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

SPACE = f"shardctl{os.getpid()}"
LINK = f"sc{os.getpid()}"


@dataclass
class Far:
    """A PgBouncer on the other side of a network that can be cut."""

    pooler: PgBouncer
    host: str

    def cut(self) -> None:
        lost = f"lladdr 02:00:00:00:00:01 dev {LINK} nud permanent"
        assert run(f"ip neigh replace {self.host} {lost}").returncode == 0

    def join(self) -> None:
        assert run(f"ip neigh del {self.host} dev {LINK}").returncode == 0


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command.split(), capture_output=True, text=True, check=False)


@pytest.fixture
def far(pgbouncer_program: str, server_directory: Path) -> Iterator[Far]:
    """A PgBouncer with one alias on the other side of a network that can be cut."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("only root, with `ip`, makes a network")
    number, held = take_number()
    near, host = (f"198.18.{number}.{last}" for last in (1, 2))
    try:
        for command in (
            f"ip netns add {SPACE}",
            f"ip link add {LINK} type veth peer name far netns {SPACE}",
            f"ip addr add {near}/24 dev {LINK}",
            f"ip link set {LINK} up",
            f"ip -n {SPACE} addr add {host}/24 dev far",
            f"ip -n {SPACE} link set far up",
        ):
            if (done := run(command)).returncode != 0:
                pytest.skip(f"no network may be made here: {done.stderr.strip()}")
        made = make(
            server_directory,
            program=pgbouncer_program,
            configuration=_CONFIGURATION.replace("= 127.0.0.1", f"= {host}"),
        )
        yield Far(start(made, host), host)
    finally:
        run(f"ip netns del {SPACE}")
        run(f"ip link del {LINK}")
        os.close(held)


def start(made: PgBouncer, host: str) -> PgBouncer:
    """Start it in the other network, as its server would here."""
    account = made.server.account
    assert account is not None
    made.config.parent.mkdir()
    shutil.chown(made.config.parent, account)
    made.config.write_text(made.server.configuration)
    made.server.users.write_text('"postgres" ""\n')
    made.databases_file.write_text("[databases]\none = host=127.0.0.1 port=1\n")
    enter = ["nsenter", f"--net=/run/netns/{SPACE}", "runuser", "-u", account, "--"]
    Local().run([*enter, made.server.program, "-d", str(made.config)])
    found = dataclasses.replace(made, pooler=dataclasses.replace(made.pooler, host=host))
    wait_for(lambda: answers(found))
    return found


def answers(pooler: PgBouncer) -> bool:
    with contextlib.suppress(PoolerUnavailable), pooler.console() as console:
        return bool(console.version())
    return False


def unsent(pooler: PgBouncer) -> int:
    """Count the connections to the pooler that still have something to send."""
    there = f":{pooler.port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(words[2].endswith(there) and not words[4].startswith("0" * 8) for words in lines)


@pytest.mark.parametrize("many", [False, True], ids=["alone", "in a batch"])
def test_a_pause_that_was_given_up_does_not_come_after_the_resume(far: Far, many: bool) -> None:
    with far.pooler.console() as console:
        far.cut()
        if many:
            [found] = batch.pause([([console], ["one"])], seconds=0.5)
            assert found.waiting == ("one",)
        else:
            with pytest.raises(PoolerLost):
                console.pause("one", seconds=0.5)
    assert unsent(far.pooler) == 0
    far.join()
    with far.pooler.console() as other:
        assert other.resume("one") is False
        assert not other.databases()["one"].paused
