"""Commands on another machine: what goes there, and what comes back."""

from __future__ import annotations

import base64
import dataclasses
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shardctl.hosts import files, scripts
from shardctl.hosts.host import (
    CommandFailed,
)
from shardctl.hosts.local import Local
from tests.fixtures.servers.sshd import shell

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.hosts.host import Host
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


def test_signals_reach_a_command_as_they_would_here(box: Ssh) -> None:
    ignored = "grep SigIgn /proc/self/status"
    assert box.run(shell(ignored)).stdout == Local().run(shell(ignored)).stdout


def test_a_command_has_no_channel_of_ours_open(box: Ssh) -> None:
    assert box.run(shell("cd /proc/self/fd; echo *")).stdout.split()[:3] == ["0", "1", "2"]
    assert "5" not in box.run(shell("ls /proc/$$/fd")).stdout.split()


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


def test_files_go_the_same_way_as_here(box: Ssh, server_directory: Path) -> None:
    server_directory.chmod(0o777)
    path = server_directory / "it's a\n$file"
    text = "größe\r\n$(id)\n" * 100_000
    assert files.read(box, path) is None
    files.write(box, path, "before")
    files.write(box, path, text)
    assert files.read(box, path) == text
    assert files.size(box, path) == len(text.encode())
    new = server_directory / "new"
    files.write(box, new, "other")
    files.replace(box, new, path)
    assert files.read(box, path) == "other"
    assert files.tail(box, path, since=2) == ["her"]
    files.remove(box, path)
    assert files.read(box, path) is None
    with pytest.raises(files.FileRefused, match="no such directory"):
        files.place(box, server_directory / "missing" / "file")


def test_scripts_run_as_they_do_here(box: Ssh) -> None:
    for host in (Local(), box):
        with pytest.raises(CommandFailed):
            scripts.run(host, "clone", "no_such_part", "a $word", text="text\n")
    length = str(len("echo $0 $1; cat"))
    argv = ["sh", "-c", scripts._SHELL, "name", length, "part"]
    for host in (Local(), box):
        done = host.run(argv, input="echo $0 $1; cattext")
        assert done.stdout == "name part\ntext"
