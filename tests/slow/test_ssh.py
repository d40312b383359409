"""Commands on another machine: what goes there, what comes back, what is killed and lost."""

from __future__ import annotations

import base64
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shardctl.hosts import ssh_connection, ssh_remote
from shardctl.hosts.host import (
    CommandTimedOut,
    HostLost,
)
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.sshd import error_of, running, shell, sleeping, when_running

if TYPE_CHECKING:
    import pytest

    from shardctl.hosts.ssh import Ssh
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
    assert not running(token)
    error_of(box, sleeping(token), CommandTimedOut, timeout=1, input="x" * 5_000_000)
    assert not running(token)
    chatty = shell("for i in $(seq 900); do echo $i; sleep 0.01; done", token)
    began = time.monotonic()
    error_of(box, chatty, CommandTimedOut, timeout=0.5)
    assert time.monotonic() - began < 5
    assert not running(token)
    leaves = shell("sh -c 'sleep 1000; :' sh $1 & echo", token)
    error_of(box, leaves, CommandTimedOut, timeout=0.5)
    wait_for(lambda: not running(token))
    assert box.run(["echo", "on"]).stdout == "on\n"


def test_a_command_without_a_deadline_ends_with_a_host_that_gives_no_sign_of_life(
    sshd: Sshd, box: Ssh, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_remote, "QUIET", 0.3)
    monkeypatch.setattr(ssh_connection, "DEAD_AFTER", 1.0)
    assert box.run(["sh", "-c", "sleep 1; echo on"]).stdout == "on\n"
    when_running(token, partial(sshd.signal, signal.SIGSTOP))
    error_of(box, sleeping(token), HostLost)
    sshd.signal(signal.SIGCONT)
    wait_for(lambda: not running(token))


def test_a_connection_that_breaks_is_no_command_that_failed(
    sshd: Sshd, box: Ssh, token: str
) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        when_running(token, partial(sshd.signal, number))
        assert "may have completed or not" not in error_of(box, sleeping(token), HostLost)
        wait_for(lambda: not running(token))
        assert box.run(["echo", "on"]).stdout == "on\n"
