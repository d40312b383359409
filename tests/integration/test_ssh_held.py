"""Commands that are held back on a host until they are told to go."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts.host import CommandFailed, CommandTimedOut
from shardctl.hosts.local import Local
from shardctl.hosts.ssh_held import HeldThere
from shardctl.hosts.ssh_links import SESSIONS
from tests.fixtures import processes
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.sshd import gone, running, shell

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.hosts.host import Held, Host
    from shardctl.hosts.ssh import Ssh
    from tests.fixtures.servers.sshd import Sshd

HOLDS = """
import sys
from shardctl.hosts.local import Local
held = Local().hold(["touch", sys.argv[1]], seconds=60)
sys.stdin.read()
"""

LONG_S = 987
"""How long commands are held back that wait; no other process names that number."""


@pytest.fixture(params=["here", "there"])
def host(request: pytest.FixtureRequest, box: Ssh) -> Host:
    return Local() if request.param == "here" else box


@pytest.fixture
def folder(server_directory: Path) -> Path:
    """Give an empty directory into which everybody may write."""
    made = server_directory / "folder"
    made.mkdir()
    made.chmod(0o777)
    return made


def held(host: Host, *argv: str, seconds: float = LONG_S, timeout: float = 10) -> Held:
    """Hold a command back on another host, and wait until it waits there."""
    made = host.hold(argv, seconds=seconds, timeout=timeout)
    wait_for(lambda: running(str(seconds)))
    return made


def ended(one: Held) -> bool:
    """Tell whether a command waits no more."""
    assert isinstance(one, HeldThere)
    return one._outcome.done()


def waits_no_more() -> bool:
    return gone(str(LONG_S))


def test_it_runs_when_it_is_told_to_and_not_before(host: Host, folder: Path) -> None:
    one = host.hold(["sh", "-c", "touch $1; echo $2", "sh", f"{folder}/a", "it's"], seconds=60)
    time.sleep(0.5)  # in which it would run
    assert not (folder / "a").exists()
    assert one.go().stdout == "it's\n"
    assert (folder / "a").exists()
    one.drop()


def test_it_fails_as_any_command_does(host: Host) -> None:
    with pytest.raises(CommandFailed) as caught:
        host.hold(shell("echo no >&2; exit 3"), seconds=60).go()
    assert (caught.value.completed.code, caught.value.completed.stderr) == (3, "no\n")
    with pytest.raises(CommandTimedOut):
        host.hold(["sleep", "1000"], seconds=60, timeout=0.5).go()


def test_its_time_begins_when_it_is_told_to_go(box: Ssh) -> None:
    one = held(box, "sleep", "0.2", timeout=1)
    time.sleep(1.2)  # more than its time
    assert one.go().code == 0


def test_one_that_is_dropped_never_runs(host: Host, folder: Path) -> None:
    one = host.hold(["touch", f"{folder}/a"], seconds=LONG_S)
    one.drop()
    wait_for(waits_no_more)
    assert not list(folder.iterdir())


def test_one_that_nobody_tells_anything_ends_with_its_connection(box: Ssh, folder: Path) -> None:
    held(box, "touch", f"{folder}/a")
    box.close()
    wait_for(waits_no_more)
    assert not list(folder.iterdir())


def test_one_of_this_machine_ends_with_the_process_that_holds_it(folder: Path) -> None:
    marker = folder / "a"
    argv = [sys.executable, "-c", HOLDS, str(marker)]
    with processes.ended(subprocess.Popen(argv, stdin=subprocess.PIPE)) as holder:
        wait_for(lambda: len(running(str(marker))) == 2)  # it, and what waits
        holder.kill()
    wait_for(lambda: gone(str(marker)))
    assert not marker.exists()


def test_one_that_has_waited_for_too_long_is_begun_anew(box: Ssh) -> None:
    one = box.hold(["echo", "on"], seconds=1)
    wait_for(lambda: ended(one))
    assert one.go().stdout == "on\n"


def test_one_whose_connection_broke_is_begun_over_another(sshd: Sshd, box: Ssh) -> None:
    one = held(box, "echo", "on")
    sshd.signal(signal.SIGKILL)
    wait_for(lambda: ended(one))
    assert one.go().stdout == "on\n"
    assert waits_no_more()


def test_those_for_which_a_host_has_no_room_take_none_from_others(box: Ssh) -> None:
    many = [box.hold(["echo", str(n)], seconds=LONG_S) for n in range(SESSIONS + 2)]
    wait_for(lambda: len(running(str(LONG_S))) >= SESSIONS // 2)
    for _ in range(SESSIONS - SESSIONS // 2):
        box.run(["true"], timeout=5)
    assert [one.go().stdout for one in many] == [f"{n}\n" for n in range(SESSIONS + 2)]
    wait_for(waits_no_more)
