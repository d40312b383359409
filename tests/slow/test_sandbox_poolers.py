"""The sandbox's poolers: they come up beside the nodes, and everything that gets in their way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from shardctl.topology import loader
from shardctl.topology.model import PoolerName
from tests.fixtures.commands import command_line, here
from tests.fixtures.servers.postgres import (
    free_run,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


P1 = PoolerName("p1")


class Sandbox:
    """The command line in a directory of its own."""

    def __init__(self, directory: Path, before: list[str]) -> None:
        self.file = directory / "topology.yaml"
        self.before = before
        self.told = ""

    def __call__(self, *words: str, code: int = 0, hidden: bool = False) -> str:
        given = ["--topology", str(self.file), "sandbox", *words]
        done = self._process(given) if hidden else here(*given)
        assert done.returncode == code, done.stderr
        self.told = done.stderr
        return done.stdout

    def _process(self, given: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.before, *command_line(*given)],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )


@pytest.fixture
def sandbox(
    server_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Sandbox]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = Sandbox(server_directory, [])
    made("new", "--shards", "2", "--nodes", "1", "--port", str(free_run(2)[0]))
    yield made
    made("down")


def test_the_command_line_runs_nodes_and_poolers(sandbox: Sandbox, pgbouncer_program: str) -> None:
    del pgbouncer_program
    plan = json.loads(sandbox("up", "--dry-run", "-o", "json"))
    pooler = loader.load(sandbox.file).poolers[P1]
    address = {"name": "p1", "host": "127.0.0.1", "port": pooler.port}
    assert plan["poolers"] == [address | {"plan": "make"}]
    with socket.create_server(("127.0.0.1", pooler.port)):
        told = json.loads(sandbox("up", "-o", "json", code=3))
    assert [one["code"] for one in told["errors"]] == ["port_in_use", "some_failed"]
    assert json.loads(sandbox("up", "-o", "json"))["poolers"] == [address | {"did": "started"}]
    told = json.loads(sandbox("status", "-o", "json"))
    assert [(one["name"], one["state"]) for one in told["nodes"]] == [("a", "up")]
    [state] = told["poolers"]
    assert state["pid"] > 0
    assert state == address | {"state": "up", "pid": state["pid"], "config": str(pooler.config)}
    os.kill(state["pid"], signal.SIGKILL)
    [a, p1] = [line.split() for line in sandbox("up").splitlines() if "127.0.0.1" in line]
    assert (a[0], a[2:], p1[0], p1[2:]) == ("a", ["was", "up"], "p1", ["started"])
    assert "to be removed" not in sandbox.told
    own = pooler.config.with_name("pgbouncer.own.ini")
    own.write_text("; mine\n")
    ended = json.loads(sandbox("down", "--delete", "--yes", "-o", "json"))
    [one] = ended["poolers"]
    assert str(pooler.config) in one.pop("deleted")
    left = {"file": str(own), "reason": "it has your own settings"}
    assert one == {"name": "p1", "did": "stopped", "left": left}
    assert not (sandbox.file.parent / ".sandbox" / "a").exists()
