"""Commands on another machine: what goes there, what comes back, what is killed and lost."""

from __future__ import annotations

import base64
import signal
from functools import partial
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shardctl import fanout
from shardctl.hosts import ssh_remote
from shardctl.hosts.host import (
    CommandFailed,
    CommandTimedOut,
    HostLost,
)
from shardctl.hosts.ssh import Ssh
from shardctl.hosts.ssh_wrapper import Wrapped
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.sshd import error_of, gone, running, shell, sleeping, when_running

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

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
