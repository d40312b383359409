"""docs/howto: add a node, drain a node, give a hot shard a server; as written, under a load."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.fixtures.moves import balanced
from tests.fixtures.network.pages import commands
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.timeout(900)

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
HOSTS = {"db1": "a", "db2": "b", "db3": "c"}
_POSTGRES = "sudo -u postgres "


class Page:
    """A page whose commands are typed one after the other, on a fleet of this machine."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab = lab
        self.page = HOWTO / name
        self.servers = {node: lab.server(node) for node in "abc"}
        self.said: dict[str, str] = {}
        # What is retired may be dropped at once, so that a page can be read to its end.
        lab.file.write_text(f"{lab.file.read_text()}move: {{retain: 0s}}\n")

    def type(self, name: str) -> None:
        """Type the commands of a block."""
        for command in commands(self.page, name):
            self.said[command.text] = self._type(command.host, command.text)

    def delete(self, *nodes: str) -> None:
        """Delete the lines of nodes from the topology."""
        pattern = rf"(?m)^  [{''.join(nodes)}]: \{{host.*\n"
        self.lab.file.write_text(re.sub(pattern, "", self.lab.file.read_text()))

    def _type(self, host: str, text: str) -> str:
        if text.startswith(("pg_ctlcluster", "pg_createcluster")):
            return self._control(HOSTS[host], text)
        at = f"--host 127.0.0.1 --port {self.servers['c'].port}"
        text = text.replace("--host 10.0.0.3 --port 5432", at)
        for machine, node in HOSTS.items():
            login = f"PGHOST=127.0.0.1 PGPORT={self.servers[node].port} PGUSER=postgres "
            text = text.replace(f"ssh {machine} {_POSTGRES}", login)
            if machine == host:
                text = text.replace(_POSTGRES, login)
        programs = f"{Path(sys.executable).parent}:{self.servers['a'].binaries.directory}"
        done = subprocess.run(
            ["/bin/bash", "-e", "-u", "-o", "pipefail", "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
            cwd=self.lab.directory,
            env=os.environ
            | {
                "PATH": f"{programs}:{os.environ['PATH']}",
                "SHARDCTL_TOPOLOGY": str(self.lab.file),
                "XDG_STATE_HOME": str(self.lab.directory / "state"),
            },
        )
        # `verify` finds what this machine's servers are set to, such as fsync = off.
        allowed = (0, 1) if text == "shardctl verify" else (0,)
        assert done.returncode in allowed, f"{text}\n{done.stdout}"
        assert self.lab.problems() == [] if text == "shardctl verify" else True
        return done.stdout

    def _control(self, node: str, text: str) -> str:
        server = self.servers[node]
        if text.startswith("pg_createcluster"):
            server.init(superuser="postgres")
        elif text.endswith("start"):
            server.start()
        else:
            assert text.endswith("stop"), text
            server.stop(mode="fast")
        return ""


@contextmanager
def working(lab: Lab, *shards: int) -> Iterator[list[str]]:
    """Let a client write into shards through the pooler; give the errors that it gets."""
    errors: list[str] = []
    ended = threading.Event()
    written = [0]

    def write() -> None:
        try:
            with ExitStack() as stack:
                sessions = [stack.enter_context(lab.alias(f"shard{shard}")) for shard in shards]
                while not ended.is_set():
                    for session in sessions:
                        session.execute("INSERT INTO photos (user_id) VALUES (1)")
                        session.commit()
                    written[0] += 1
        except psycopg.Error as error:
            errors.append(str(error))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        wait_for(lambda: written[0] > 0 or errors, seconds=60)
        yield errors
    finally:
        ended.set()
        thread.join()


def test_add_a_node(fleet_own: Lab) -> None:
    page = Page(fleet_own, "add-a-node.md")
    page.delete("c", "d")
    with working(fleet_own, *range(8)) as errors:
        page.type("server")
        page.type("join")
        page.type("rebalance")
        page.type("prune")
    assert errors == []
    counted = balanced.owned(fleet_own)
    assert sum(counted.values()) == 8
    assert counted["c"] > 0


def test_drain_a_node(fleet_uneven: Lab) -> None:
    page = Page(fleet_uneven, "drain-a-node.md")
    with working(fleet_uneven, *range(8)) as errors:
        page.type("drain")
        page.type("prune")
        assert balanced.owned(fleet_uneven)["b"] == 0
        assert "(drained)" in balanced.reading(fleet_uneven, "status").stdout
        page.type("retire")
    assert errors == []
    assert "b" not in fleet_uneven.topology.nodes


def test_a_hot_shard(fleet_uneven: Lab) -> None:
    page = Page(fleet_uneven, "hot-shard.md")
    with working(fleet_uneven, 2) as errors:
        page.type("plan")
        page.type("apply")
    assert errors == []
    alone = fleet_uneven.topology.owners()[2]  # type: ignore[index]  # a shard
    assert balanced.owned(fleet_uneven)[alone] == 1


def test_a_hot_shard_moves_by_name(fleet_uneven: Lab) -> None:
    page = Page(fleet_uneven, "hot-shard.md")
    with working(fleet_uneven, 2) as errors:
        page.type("move")
        page.type("later")
    assert errors == []
    assert balanced.owned(fleet_uneven)["c"] == 1
