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
    CommandTimedOut,
)
from shardctl.hosts.local import Local
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.sshd import error_of, gone, shell, sleeping

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


def test_a_program_is_found_by_any_name(box: Ssh, server_directory: Path) -> None:
    for name in ("it's $HOME", "größe", "a=b", "two\nlines", "--"):
        program = server_directory / name
        program.write_text('#!/bin/sh\necho "$0"\n')
        program.chmod(0o755)
        assert box.run([str(program)]).stdout == f"{program}\n"


def test_what_no_process_can_be_given_is_refused(box: Ssh) -> None:
    with pytest.raises(ValueError, match="null byte"):
        box.run(["echo", "a\0b"])
    with pytest.raises(ValueError, match="not a valid name of an environment variable"):
        box.run(["true"], env={"a;b": ""})


def test_builtins_of_the_shell_do_not_stand_in_for_programs(box: Ssh) -> None:
    assert "not found" in error_of(box, ["cd", "/"], CommandFailed)
    assert "not found" in error_of(box, ["exit", "3"], CommandFailed)


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


def test_much_goes_both_ways_at_once(box: Ssh) -> None:
    text = "größe 0123456789\n" * 400_000
    script = "tee /dev/stderr"
    done = box.run(shell(script), input=text, timeout=60)
    assert done.stdout == text
    assert done.stderr == text


def test_input_that_nobody_reads_holds_nothing_up(box: Ssh) -> None:
    assert box.run(["echo", "done"], input="x" * 5_000_000, timeout=30).stdout == "done\n"


def test_input_with_null_bytes_arrives(box: Ssh) -> None:
    assert box.run(["od", "-An", "-c"], input="a\0b").stdout.split() == ["a", "\\0", "b"]


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


def test_a_command_that_fails_says_so(box: Ssh) -> None:
    assert error_of(box, shell("echo why >&2; exit 3"), CommandFailed).endswith("code 3\n  why")
    assert "not found" in error_of(box, ["no-such-program"], CommandFailed)


def test_a_shell_that_dies_is_a_command_that_failed(box: Ssh) -> None:
    assert "as when it is killed" in error_of(box, shell("kill -KILL 0"), CommandFailed)
    assert box.run(["echo", "on"]).stdout == "on\n"


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
        done = host.stream(shell(script, str(go)), line=take, input="2", timeout=20)
        assert lines == ["1", "2", "", "3"]
        assert (done.stdout, done.stderr, done.code) == ("", "", 0)


def test_what_takes_the_lines_may_give_up(box: Ssh, token: str) -> None:
    def refuse(line: str) -> None:
        raise KeyboardInterrupt(line)

    for host in (Local(), box):
        with pytest.raises(KeyboardInterrupt, match="one"):
            host.stream(shell("echo one; sleep 1000; :", token), line=refuse)
        wait_for(lambda: gone(token))


def test_streams_end_and_fail_alike(box: Ssh, token: str) -> None:
    for host in (Local(), box):
        with pytest.raises(CommandFailed, match="code 3\n  why"):
            host.stream(shell("echo why >&2; exit 3"), line=lambda _: None)
        with pytest.raises(CommandTimedOut):
            host.stream(sleeping(token), line=lambda _: None, timeout=0.5)
        wait_for(lambda: gone(token))


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
