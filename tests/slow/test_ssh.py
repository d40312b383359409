"""Commands on another machine: what goes there, what comes back, what is killed and lost."""

from __future__ import annotations

import base64
import dataclasses
import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shardctl import fanout
from shardctl.hosts import ssh_remote
from shardctl.hosts.host import (
    CommandFailed,
    CommandTimedOut,
    HostLost,
)
from shardctl.hosts.local import Local
from shardctl.hosts.ssh import Ssh
from shardctl.hosts.ssh_wrapper import Wrapped
from tests.fixtures.processes import awaited
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.sshd import error_of, gone, running, shell, sleeping, when_running

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.hosts.host import Host
    from tests.fixtures.servers.sshd import Sshd


words = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]))


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(argv=st.lists(words, max_size=8))
@example(argv=["it's", 'a "b"', "$HOME", "`id`", "$(id)", "a\nb\n", "\\", "\\n", "!", "*", "~"])
@example(argv=["-n", "--", "--help", "", " ", "\t", "größe", "€ 😀", "āĂąć", "a=b", "#", ";", "\r"])
@example(argv=["x" * 100_000])
def test_arguments_arrive_as_they_are(box: Ssh, argv: list[str]) -> None:
    coded = box.run(shell("for word; do printf '%s\\0' \"$word\"; done | base64", *argv)).stdout
    assert base64.b64decode(coded).decode() == "".join(f"{word}\0" for word in argv)


def test_the_environment_arrives_and_is_shown_to_nobody(box: Ssh, token: str) -> None:
    secret = f"secret-{token} '\"$\n"
    names = ("PGPASSWORD", "SOME_TOKEN", "PLAIN")
    script = "tr '\\0' '\\n' < /proc/1/cmdline > /dev/null; ps -eww -o args; printenv PGPASSWORD"
    said = box.run(shell(script), env=dict.fromkeys(names, secret)).stdout
    assert said.endswith(f"{secret}\n")
    assert said.count("secret-") == 1
    assert box.run(["printenv", "PLAIN"], env={"PLAIN": "größe"}).stdout == "größe\n"


def test_input_is_shown_to_nobody_and_arrives_whole(box: Ssh, token: str) -> None:
    said = box.run(shell("ps -eww -o args; cat"), input=f"secret-{token}").stdout
    assert said.count("secret-") == 1
    assert box.run(["cat"]).stdout == ""


def test_it_runs_as_it_would_here(box: Ssh) -> None:
    """The same of both kinds of host, but for the code of a death by a signal."""
    for script in (
        "printf 'caf\\351\\r\\nx'; printf 'err\\377' >&2",
        "printf 'a\\r\\n\\n'; exit 3",
        "cat; exec >&- 2>&-; sleep 0.1; exit 4",
        "kill -TERM $$",
        "kill -KILL $$",
    ):
        ends = []
        for host in (Local(), box):
            try:
                ends.append(host.run(shell(script), input="in"))
            except CommandFailed as error:
                ends.append(error.completed)
        here, there = ends
        code = here.code if here.code >= 0 else 128 - here.code
        assert there == dataclasses.replace(here, code=code)


def test_what_a_login_shell_prints_is_left_out(sshd: Sshd, box: Ssh) -> None:
    noisy = (sshd.directory / "authorized_keys").read_text()
    forced = 'command="echo noise; echo noise >&2; eval \\"$SSH_ORIGINAL_COMMAND\\"" '
    (sshd.directory / "authorized_keys").write_text(forced + noisy)
    try:
        done = box.run(shell("echo out; echo err >&2"))
    finally:
        (sshd.directory / "authorized_keys").write_text(noisy)
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


def test_lines_come_as_they_are_printed(box: Ssh, server_directory: Path) -> None:
    server_directory.chmod(0o777)
    hosts: list[Host] = [Local(), box]
    for number, host in enumerate(hosts):
        go = server_directory / f"go{number}"
        lines: list[str] = []

        def take(line: str, go: Path = go, lines: list[str] = lines) -> None:
            lines.append(line)
            go.touch()

        script = 'echo 1; until [ -e "$1" ]; do sleep 0.01; done; cat; printf "\\n\\r\\n3" '
        done = host.run(shell(script, str(go)), line=take, input="2", timeout=20)
        assert lines == ["1", "2", "", "3"]
        assert (done.stdout, done.stderr, done.code) == ("", "", 0)


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
