"""`shardctl run`: where a command runs, what it is given, how answers are told and what is left."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from tests.fixtures.commands import command_line
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.sshd import running as processes

if TYPE_CHECKING:
    from tests.fixtures.fleets.rows import Stated


def run(fleet_rows: Stated, *arguments: str) -> subprocess.CompletedProcess[str]:
    return fleet_rows.fleet.here("run", *arguments)


def told(fleet_rows: Stated, *arguments: str) -> list[dict[str, Any]]:
    results = json.loads(run(fleet_rows, *arguments, "-o", "json").stdout)["results"]
    assert isinstance(results, list)
    return results


# Where, and with what


def test_with_on_it_runs_once_for_each_server_and_is_told_which(fleet_rows: Stated) -> None:
    found = told(fleet_rows, "env | grep ^SHARDCTL_ | sort", "--on", "nodes")
    assert [one["servers"] for one in found] == [["a"], ["b"]]
    said = dict(line.split("=", 1) for line in found[1]["stdout"].splitlines())
    assert said["SHARDCTL_PORT"] == str(fleet_rows.fleet.servers["b"].port)
    assert {key: said[f"SHARDCTL_{key}"] for key in ("NAME", "KIND", "HOST", "DATABASE")} == {
        "NAME": "b", "KIND": "node", "HOST": "127.0.0.1", "DATABASE": fleet_rows.fleet.database,
    }  # fmt: skip


# What is recorded


def events(fleet_rows: Stated, node: str = "a") -> list[str]:
    query = "SELECT result FROM shardctl.event WHERE command = 'run' ORDER BY id"
    return [result for (result,) in fleet_rows.fleet.query(node, query)]


def test_it_is_recorded_on_the_nodes_of_the_hosts_that_it_ran_on(fleet_rows: Stated) -> None:
    run(fleet_rows, "exit 4", "--on", "a")
    assert (events(fleet_rows, "a"), events(fleet_rows, "b")) == (["exit 4: exit 4"], [])
    run(fleet_rows, "PGPASSWORD='hunter2' true")
    assert events(fleet_rows, "b") == ["exit 0: PGPASSWORD='***' true"]


# How it ends


def test_what_takes_too_long_is_killed_with_all_it_started(fleet_rows: Stated, token: str) -> None:
    done = run(
        fleet_rows, f"echo begun; sh -c 'sleep 1000; :' {token} & wait", "--timeout", "300ms"
    )
    assert done.returncode == 3
    assert "begun\n" in done.stdout
    assert not processes(token)


def test_ctrl_c_kills_what_runs_and_what_has_ended_is_shown(fleet_rows: Stated, token: str) -> None:
    command = f"echo $SHARDCTL_NAME; test $SHARDCTL_NAME = a || sh -c 'sleep 1000; :' {token}"
    given = ["--topology", str(fleet_rows.fleet.write()), "run", command, "--on", "nodes", "--yes"]
    with ended(
        subprocess.Popen(
            command_line(*given),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    ) as process:
        # The command's shell has it on its line, and so has shardctl, within a longer word.
        wait_for(lambda: processes(token))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "a, exit 0:\n  a\n" in out
    assert not processes(token)
