"""Commands on another machine: what is killed, what is lost, and many at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from shardctl import fanout
from shardctl.hosts import ssh_remote
from shardctl.hosts.host import (
    CommandFailed,
    CommandTimedOut,
    HostLost,
)
from shardctl.hosts.ssh import Ssh
from shardctl.hosts.ssh_wrapper import Wrapped
from tests.fixtures.processes import awaited
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.sshd import error_of, gone, running, shell, sleeping, when_running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.servers.sshd import Sshd


def test_a_command_that_takes_too_long_is_killed_with_all_it_started(box: Ssh, token: str) -> None:
    assert "0.5 s" in error_of(box, sleeping(token), CommandTimedOut, timeout=0.5)
    assert gone(token)
    error_of(box, sleeping(token), CommandTimedOut, timeout=1, input="x" * 5_000_000)
    assert gone(token)
    leaves = shell("sh -c 'sleep 1000; :' sh $1 & echo", token)
    error_of(box, leaves, CommandTimedOut, timeout=0.5)
    wait_for(lambda: gone(token))
    assert box.run(["echo", "on"]).stdout == "on\n"


def test_a_connection_that_breaks_is_no_command_that_failed(
    sshd: Sshd, box: Ssh, token: str
) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        when_running(token, partial(sshd.signal, number))
        assert "may have completed or not" not in error_of(box, sleeping(token), HostLost)
        wait_for(lambda: gone(token))
        assert box.run(["echo", "on"]).stdout == "on\n"


def test_a_host_that_hangs_is_given_up_at_the_deadline(
    sshd: Sshd, box: Ssh, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_remote, "_KILLED_WITHIN", 0.5)
    when_running(token, lambda: sshd.signal(signal.SIGSTOP))
    assert "stopped responding" in error_of(box, sleeping(token), HostLost, timeout=3)
    assert running(token)
    sshd.signal(signal.SIGCONT)
    wait_for(lambda: gone(token))


def test_nothing_runs_of_a_command_that_did_not_arrive_whole(
    box: Ssh, server_directory: Path
) -> None:
    server_directory.chmod(0o777)
    wrapped = Wrapped(["touch", str(server_directory / "ran")], None, {}, "").script()
    for part in range(0, len(wrapped), 37):
        cut = wrapped[:part]
        line = f"head -c {len(cut)} | sh -c 'eval \"$(head -c {len(wrapped)})\"'"
        try:
            box.run(shell(line), input=cut.decode())
        except CommandFailed:
            continue
    assert not (server_directory / "ran").exists()


def test_all_threads_go_over_one_connection(sshd: Sshd, box: Ssh) -> None:
    def one(number: int) -> str:
        return Ssh(box.settings).run(shell("cat; sleep 0.2"), input=f"{number}").stdout

    before = sshd.log.count("Accepted publickey")
    done = fanout.run(range(32), one, width=16)
    assert [outcome.result() for outcome in done] == [str(number) for number in range(32)]
    assert sshd.log.count("Accepted publickey") == before + 1


@pytest.mark.usefixtures("box")
def test_a_process_that_ends_leaves_nothing(sshd: Sshd, token: str) -> None:
    script = (
        "import sys, threading; from shardctl.hosts.ssh import Ssh\n"
        "from shardctl.hosts.openssh import SshSettings\n"
        "assert not {'fabric', 'paramiko'} & set(sys.modules)\n"
        "host = Ssh(SshSettings('box')); host.run(['true'])\n"
        "take = lambda line: (print(line, flush=True), sys.stdin.read(), sys.exit())\n"
        "host.run(['sh', '-c', 'echo begun; sleep 1000; :', 'sh', sys.argv[1]], line=take)\n"
    )
    for ends in ("by itself", "killed"):
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", script, f"{token}-x"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with awaited(process):
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            if ends == "killed":
                process.kill()
        assert process.returncode == (-9 if ends == "killed" else 0)
        wait_for(lambda: not running(f"{token}-x"))
        wait_for(lambda: not sshd.sessions())
