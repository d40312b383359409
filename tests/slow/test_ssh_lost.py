"""Commands on another machine: what is killed, what is lost, and many at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from shardctl import fanout
from shardctl.hosts import ssh_connection, ssh_remote
from shardctl.hosts.host import (
    CommandFailed,
    CommandTimedOut,
    HostLost,
    HostUnreachable,
)
from shardctl.hosts.openssh import SshSettings
from shardctl.hosts.ssh import Ssh
from shardctl.hosts.ssh_wrapper import Wrapped
from tests.fixtures.processes import awaited
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.sshd import error_of, gone, running, shell, sleeping, when_running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.servers.sshd import Sshd, SshHome, StartSshd


def test_a_command_that_takes_too_long_is_killed_with_all_it_started(box: Ssh, token: str) -> None:
    assert "0.5 s" in error_of(box, sleeping(token), CommandTimedOut, timeout=0.5)
    assert gone(token)
    error_of(box, sleeping(token), CommandTimedOut, timeout=1, input="x" * 5_000_000)
    assert gone(token)
    leaves = shell("sh -c 'sleep 1000; :' sh $1 & echo", token)
    error_of(box, leaves, CommandTimedOut, timeout=0.5)
    wait_for(lambda: gone(token))
    assert box.run(["echo", "on"]).stdout == "on\n"


def test_what_a_command_leaves_behind_on_purpose_stays(box: Ssh, token: str) -> None:
    box.run(shell("sh -c 'sleep 1000; :' sh $1 > /dev/null 2>&1 &", token))
    box.close()
    time.sleep(0.3)  # in which it would be killed
    assert running(token)
    (left,) = running(token)
    os.killpg(os.getpgid(left), signal.SIGKILL)  # with what it waits for
    wait_for(lambda: gone(token))


def test_a_connection_that_breaks_is_no_command_that_failed(
    sshd: Sshd, box: Ssh, token: str
) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        when_running(token, partial(sshd.signal, number))
        assert "may have completed or not" not in error_of(box, sleeping(token), HostLost)
        wait_for(lambda: gone(token))
        assert box.run(["echo", "on"]).stdout == "on\n"


def test_a_connection_that_broke_in_between_is_not_noticed(sshd: Sshd, box: Ssh) -> None:
    for _ in range(5):
        box.run(["true"])
        sshd.signal(signal.SIGKILL)


def test_a_host_that_hangs_is_given_up_at_the_deadline(
    sshd: Sshd, box: Ssh, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_remote, "_KILLED_WITHIN", 0.5)
    when_running(token, lambda: sshd.signal(signal.SIGSTOP))
    assert "stopped responding" in error_of(box, sleeping(token), HostLost, timeout=3)
    assert running(token)
    sshd.signal(signal.SIGCONT)
    wait_for(lambda: gone(token))


def test_a_host_that_hangs_is_given_up_without_a_deadline(
    sshd: Sshd, box: Ssh, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_remote, "QUIET", 0.3)
    monkeypatch.setattr(ssh_connection, "QUIET", 0.3)
    monkeypatch.setattr(ssh_connection, "DEAD_AFTER", 1.5)
    box.run(["sleep", "2"])  # long, and alive
    when_running(token, lambda: sshd.signal(signal.SIGSTOP))
    assert "the host stopped responding" in error_of(box, sleeping(token), HostLost)
    sshd.signal(signal.SIGCONT)
    wait_for(lambda: gone(token))


def test_a_host_that_hung_meanwhile_is_reached_anew(sshd: Sshd, ssh_home: SshHome) -> None:
    ssh_home.config.write_text(sshd.block("box"))
    ssh_home.known_hosts.write_text(sshd.known())
    host = Ssh(SshSettings("box", connect_timeout=1))
    host.run(["true"])
    sshd.signal(signal.SIGSTOP)
    assert host.run(["echo", "on"]).stdout == "on\n"


def test_a_host_that_hangs_while_it_is_fed_is_given_up(
    sshd: Sshd, box: Ssh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_remote, "_KILLED_WITHIN", 0.5)
    text = "x" * 40_000_000
    size = len(Wrapped(["cat"], None, {}, text).script())
    stopper = when_running(str(size), lambda: sshd.signal(signal.SIGSTOP))
    began = time.monotonic()
    error_of(box, ["cat"], HostLost, input=text, timeout=4)
    assert time.monotonic() - began < 10
    stopper.join()


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


def test_a_host_that_allows_one_session_gets_one_after_the_other(
    start_sshd: StartSshd, ssh_home: SshHome, token: str
) -> None:
    server = start_sshd("MaxSessions 1")
    ssh_home.known_hosts.write_text(server.known())
    ssh_home.config.write_text(server.block("box"))
    host = Ssh(SshSettings("box"))
    done = fanout.run(range(8), lambda n: host.run(["echo", str(n)]).stdout, width=8)
    assert [outcome.result() for outcome in done] == [f"{number}\n" for number in range(8)]
    slow = threading.Thread(target=host.run, args=(shell("sleep 2; :", token),))
    slow.start()
    wait_for(lambda: running(token))
    assert "none ended in time" in error_of(host, ["true"], HostUnreachable, timeout=0.2)
    slow.join()


def test_threads_that_cannot_connect_fail_together(sshd: Sshd, ssh_home: SshHome) -> None:
    ssh_home.known_hosts.write_text(sshd.known())
    sshd.hang()
    host = Ssh(SshSettings(sshd.host, sshd.login, sshd.port, connect_timeout=1))
    began = time.monotonic()
    done = fanout.run(range(16), lambda _: host.run(["true"]), width=16)
    assert {type(outcome.error) for outcome in done} == {HostUnreachable}
    assert time.monotonic() - began < 10


@pytest.mark.usefixtures("box")
def test_a_process_that_ends_leaves_nothing(sshd: Sshd, token: str) -> None:
    script = (
        "import sys, threading; from shardctl.hosts.ssh import Ssh\n"
        "from shardctl.hosts.openssh import SshSettings\n"
        "assert not {'fabric', 'paramiko'} & set(sys.modules)\n"
        "host = Ssh(SshSettings('box')); host.run(['true'])\n"
        "take = lambda line: (print(line, flush=True), sys.stdin.read(), sys.exit())\n"
        "host.stream(['sh', '-c', 'echo begun; sleep 1000; :', 'sh', sys.argv[1]], line=take)\n"
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
