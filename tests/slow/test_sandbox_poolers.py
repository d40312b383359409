"""The sandbox's poolers: they come up beside the nodes, and everything that gets in their way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.errors import Problems, ShardctlError
from shardctl.fanout import Silent
from shardctl.hosts import files
from shardctl.pgbouncer.console import Console, PoolerUnavailable
from shardctl.sandbox import new, poolers
from shardctl.topology import loader
from shardctl.topology.model import PoolerName, Ssh
from tests.fixtures.commands import command_line, here
from tests.fixtures.servers.postgres import (
    free_ports,
    free_run,
    local_node,
    local_pooler,
    local_topology,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.topology.model import Topology


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as others")

P1 = PoolerName("p1")


@pytest.fixture
def single(server_directory: Path, pgbouncer_program: str) -> Topology:
    """A pooler before a node that is not there, which the pooler need not know."""
    del pgbouncer_program  # without it there is nothing to test
    return with_poolers(server_directory, "p1")


def with_poolers(directory: Path, *names: str) -> Topology:
    [node, *ports] = free_ports(1 + len(names))
    topology = local_topology(directory, local_node(directory, "a", node, range(4)))
    found = {
        PoolerName(name): local_pooler(directory / ".sandbox" / name, name, port)
        for name, port in zip(names, ports, strict=True)
    }
    quick = replace(topology.database, options={"connect_timeout": "2"})
    return replace(topology, poolers=found, database=quick)


def changed(topology: Topology, **changes: Any) -> Topology:
    """Let the topology say something else of the first pooler."""
    first = replace(topology.poolers[P1], **changes)
    return replace(topology, poolers={**topology.poolers, P1: first})


def folder_of(topology: Topology) -> Path:
    return topology.poolers[P1].config.parent


def up(topology: Topology) -> dict[str, str]:
    return {one.pooler.name: one.did for one in poolers.up(topology, Silent())}


def foreseen(topology: Topology) -> dict[str, str]:
    return {one.name: does for one, does in poolers.foresee(topology)}


def down(topology: Topology, *, delete: bool = False) -> list[poolers.PoolerDown]:
    return poolers.down(topology, Silent(), delete=delete)


def states(topology: Topology) -> dict[str, str]:
    return {one.pooler.name: one.state for one in poolers.status(topology)}


def pid_of(topology: Topology) -> int:
    [one] = [one for one in poolers.status(topology) if one.pooler.name == P1]
    assert one.pid is not None
    return one.pid


def refused(topology: Topology) -> list[ShardctlError]:
    """Bring the poolers up, and give the errors that it must end with."""
    with pytest.raises(Problems) as problems:
        poolers.up(topology, Silent())
    assert all(error.hint for error in problems.value.errors)
    return problems.value.errors


def refused_at_once(topology: Topology) -> ShardctlError:
    """See that nothing is waited for, and that a dry run says the same."""
    began = time.monotonic()
    first, *rest = refused(topology)
    assert time.monotonic() - began < 5
    assert [error.code for error in rest] == ["some_failed"]
    with pytest.raises(Problems) as problems:
        poolers.foresee(topology)
    [same] = problems.value.errors
    assert (str(same), same.hint) == (str(first), first.hint)
    return first


def console_of(topology: Topology) -> Console:
    return Console(topology.poolers[P1], topology.database, purpose="test")


def config_of(topology: Topology) -> dict[str, str]:
    with console_of(topology) as console:
        return console.config()


def test_a_pooler_comes_up_once_and_goes_down_and_leaves_nothing(single: Topology) -> None:
    assert (states(single), foreseen(single)) == ({"p1": "absent"}, {"p1": "make"})
    assert not folder_of(single).exists()
    assert up(single) == {"p1": "started"}
    pid = pid_of(single)
    assert os.getsid(pid) != os.getsid(0)
    assert config_of(single)["conffile"] == str(single.poolers[P1].config)
    assert (up(single), pid_of(single)) == ({"p1": "up"}, pid)
    assert (states(single), foreseen(single)) == ({"p1": "up"}, {"p1": "up"})
    [one] = down(single)
    assert (one.was_up, one.deleted, one.left) == (True, (), None)
    assert (states(single), foreseen(single)) == ({"p1": "down"}, {"p1": "start"})
    with pytest.raises(PoolerUnavailable):
        console_of(single)
    assert up(single) == {"p1": "started"}
    [one] = down(single, delete=True)
    assert single.poolers[P1].config in one.deleted
    assert not folder_of(single).exists()
    assert down(single, delete=True) == []


def test_a_pooler_that_was_killed_is_started_again(single: Topology) -> None:
    up(single)
    os.kill(pid_of(single), signal.SIGKILL)
    wait_for(lambda: states(single) == {"p1": "down"})
    assert up(single) == {"p1": "started"}
    assert states(single) == {"p1": "up"}


def test_a_pid_file_with_the_number_of_another_process_is_stale(single: Topology) -> None:
    up(single)
    down(single)
    (folder_of(single) / "pgbouncer.pid").write_text(f"{os.getpid()}\n")
    assert states(single) == {"p1": "down"}
    assert [one.was_up for one in down(single)] == [False]
    assert up(single) == {"p1": "started"}


def test_a_pooler_that_hangs_goes_down(single: Topology) -> None:
    up(single)
    os.kill(pid_of(single), signal.SIGSTOP)
    assert [one.was_up for one in down(single)] == [True]
    assert states(single) == {"p1": "down"}


def test_clients_do_not_keep_a_pooler_up(single: Topology) -> None:
    up(single)
    with console_of(single) as client:
        client.execute("SHOW VERSION")
        assert [one.was_up for one in down(single)] == [True]


def test_a_configuration_changed_by_hand_is_kept(single: Topology) -> None:
    up(single)
    config = single.poolers[P1].config
    config.write_text(config.read_text().replace("max_client_conn = 1000", "max_client_conn = 77"))
    assert up(single) == {"p1": "up"}
    down(single)
    assert (foreseen(single), up(single)) == ({"p1": "start"}, {"p1": "started"})
    assert config_of(single)["max_client_conn"] == "77"
    [one] = down(single, delete=True)
    assert (one.was_up, one.deleted) == (True, ())
    assert one.left == (config, "it was changed by hand")
    assert "max_client_conn = 77" in config.read_text()


def test_a_configuration_that_pgbouncer_refuses_shows_its_words(single: Topology) -> None:
    up(single)
    down(single)
    config = single.poolers[P1].config
    text = config.read_text()
    config.write_text(text.replace("pool_mode = transaction", "pool_mode = sometimes"))
    error, _ = refused(single)
    assert str(error).startswith("pooler p1 did not start:")
    assert "sometimes" in str(error)
    config.write_text(text)
    assert up(single) == {"p1": "started"}


def test_what_the_topology_says_otherwise_by_now_is_loaded(single: Topology) -> None:
    up(single)
    pid = pid_of(single)
    roles = replace(single.database, app_roles=("app", "reports"))
    other = changed(replace(single, database=roles), admin_user="boss")
    assert foreseen(other) == {"p1": "reload"}
    assert "boss" not in single.poolers[P1].config.read_text()
    assert up(other) == {"p1": "reloaded"}
    assert config_of(other)["admin_users"] == "boss"
    assert '"reports"' in (folder_of(other) / "users.txt").read_text()
    assert (up(other), pid_of(other)) == ({"p1": "up"}, pid)


def test_a_configuration_of_somebody_elses_is_not_touched(single: Topology) -> None:
    config = single.poolers[P1].config
    config.parent.mkdir(parents=True)
    config.write_text("[pgbouncer]\nlisten_port = 1\n")
    error = refused_at_once(single)
    assert str(error) == f"pooler p1: {config} was not written by `shardctl sandbox up`"
    assert states(single) == {"p1": "foreign"}
    assert down(single, delete=True) == []
    assert [one.name for one in config.parent.iterdir()] == ["pgbouncer.ini"]


def test_a_port_in_use_names_the_program_and_the_other_pooler_stays_up(
    server_directory: Path, pgbouncer_program: str
) -> None:
    del pgbouncer_program
    both = with_poolers(server_directory, "p1", "p2")
    taken = both.poolers[P1].port
    with socket.create_server(("127.0.0.1", taken)):
        error, rest = refused(both)
    assert f"pooler p1: port {taken} of 127.0.0.1 is in use by" in str(error)
    assert f"(pid {os.getpid()})" in str(error)
    assert (str(rest), rest.exit_code) == ("a, p2 started; p1 did not", 3)
    assert states(both) == {"p1": "absent", "p2": "up"}
    assert up(both) == {"p1": "started", "p2": "up"}
    assert [one.was_up for one in down(both)] == [True, True]


def test_a_changed_port_is_refused_while_the_pooler_runs_and_taken_after(single: Topology) -> None:
    up(single)
    [port] = free_ports(1)
    moved = changed(single, port=port)
    error = refused_at_once(moved)
    before = single.poolers[P1].port
    assert str(error) == f"pooler p1 runs on port {before}; the topology has port {port}"
    assert [one.was_up for one in down(moved)] == [True]
    assert up(moved) == {"p1": "started"}
    assert config_of(moved)["listen_port"] == str(port)


def test_a_port_changed_by_hand_is_refused_before_anything_is_started(single: Topology) -> None:
    up(single)
    down(single)
    config = single.poolers[P1].config
    config.write_text(
        config.read_text().replace(f"listen_port = {single.poolers[P1].port}", "listen_port = 1")
    )
    assert "would run, by" in str(refused_at_once(single))
    assert states(single) == {"p1": "down"}


def test_another_pooler_at_the_topologys_port_is_not_shut_down(
    server_directory: Path, pgbouncer_program: str
) -> None:
    del pgbouncer_program
    both = with_poolers(server_directory, "p1", "p2")
    up(both)
    first, second = both.poolers.values()
    swapped = replace(both, poolers={P1: replace(first, port=second.port)})
    assert [one.was_up for one in down(swapped)] == [True]
    assert states(both) == {"p1": "down", "p2": "up"}


def test_only_the_sandboxs_own_files_are_deleted(single: Topology) -> None:
    up(single)
    mine = folder_of(single) / "notes.txt"
    mine.write_text("mine")
    unfinished = single.poolers[P1].databases_file.with_name(f"shards.ini{files.UNFINISHED}")
    unfinished.write_text("half of")
    down(single, delete=True)
    assert list(folder_of(single).iterdir()) == [mine]


def test_poolers_of_other_machines_are_left_alone(single: Topology) -> None:
    there = Ssh(None, None, None, None, accept_new=False)
    for other in (changed(single, host="10.1.2.3"), changed(single, ssh=there)):
        assert (up(other), states(other), down(other)) == ({}, {}, [])
    assert not folder_of(single).exists()


@needs_root
def test_a_place_that_the_poolers_user_may_not_enter_is_named_with_its_remedy(
    single: Topology,
) -> None:
    closed = single.path.parent / "closed"
    closed.mkdir(mode=0o700)
    error = refused_at_once(changed(single, config=closed / "p1" / "pgbouncer.ini"))
    assert f"{closed}/p1/pgbouncer.ini: the user" in str(error)
    assert f"cannot enter {closed}" in str(error)
    assert f"chmod o+x {closed}" in error.hint
    assert list(closed.iterdir()) == []


@needs_root
def test_a_user_that_cannot_run_it_is_refused(single: Topology) -> None:
    assert "pooler p1: the server cannot run as root" in str(
        refused_at_once(changed(single, os_user="root"))
    )
    assert "no such user" in str(refused_at_once(changed(single, os_user="not-here")))


def test_a_directory_that_cannot_be_made_is_an_error(single: Topology) -> None:
    (single.path.parent / "file").touch()
    error, _ = refused(changed(single, config=single.path.parent / "file" / "p1" / "pgbouncer.ini"))
    assert "pooler p1: " in str(error)
    assert "file" in str(error)


def test_what_sandbox_new_writes_for_a_closed_directory_serves_the_pooler_too(
    server_directory: Path, pgbouncer_program: str
) -> None:
    del pgbouncer_program
    closed = server_directory / "closed"
    closed.mkdir(mode=0o700)
    root = new.write(closed / "t.yaml", shards=2, nodes=1, spare=0, port=free_run(2)[0])
    topology = loader.load(closed / "t.yaml")
    pooler = topology.poolers[P1]
    try:
        assert pooler.config == root / "p1" / "pgbouncer.ini"
        assert pooler.databases_file.parent == root / "p1"
        assert (root.parent == closed) == (os.geteuid() != 0)
        assert up(topology) == {"p1": "started"}
        assert states(topology) == {"p1": "up"}
        down(topology, delete=True)
        assert list(root.iterdir()) == []
    finally:
        down(topology)
        shutil.rmtree(root)


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
        sandbox("up", code=3)
    assert f"pooler p1: port {pooler.port} of 127.0.0.1 is in use by" in sandbox.told
    assert "a started; p1 did not" in sandbox.told
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
    with pooler.config.open("a") as config:
        config.write("; mine\n")
    ended = json.loads(sandbox("down", "--delete", "--yes", "-o", "json"))
    assert ended["poolers"] == [
        {
            "name": "p1",
            "did": "stopped",
            "deleted": [],
            "left": {"file": str(pooler.config), "reason": "it was changed by hand"},
        }
    ]
    assert not (sandbox.file.parent / ".sandbox" / "a").exists()


def test_without_pgbouncer_the_sandbox_goes_on_and_says_so(
    sandbox: Sandbox, hidden_pgbouncer: list[str]
) -> None:
    sandbox.before = hidden_pgbouncer
    for words in (("up", "--dry-run"), ("up",)):
        told = json.loads(sandbox(*words, "-o", "json", hidden=True))
        assert sandbox.told.splitlines()[0] == (
            "note: this machine has no pgbouncer (apt-get install pgbouncer); "
            "continuing without poolers"
        )
        assert ([one["name"] for one in told["nodes"]], told["poolers"]) == (["a"], [])
    told = json.loads(sandbox("status", "-o", "json", hidden=True))
    assert (told["nodes"][0]["state"], told["poolers"][0]["state"]) == ("up", "absent")


def test_a_pooler_goes_down_after_its_program_is_gone(
    sandbox: Sandbox, hidden_pgbouncer: list[str], pgbouncer_program: str
) -> None:
    del pgbouncer_program
    sandbox.before = hidden_pgbouncer
    topology = loader.load(sandbox.file)
    up(topology)
    told = json.loads(sandbox("down", "--delete", "--yes", "-o", "json", hidden=True))
    assert [(one["name"], one["did"]) for one in told["poolers"]] == [("p1", "stopped")]
    assert not folder_of(topology).exists()
