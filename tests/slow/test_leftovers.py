"""What becomes of the processes that a test leaves, and of one that its time limit ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.fixtures.servers.sshd import gone

ROOT = Path(__file__).parents[2]
_HEAD = """
import subprocess, pytest
from pathlib import Path
from tests.fixtures import leftovers
from tests.fixtures.processes import awaited, ended
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.sshd import running
leftovers._PATIENCE_S = 0.2
def has_stopped(pid):
    return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "T"
def start(*before):
    # A shell that stops itself is one process, and begins no other while it is looked at.
    started = subprocess.Popen([*before, "sh", "-c", "kill -STOP $$; :", "{token}"])
    wait_for(lambda: any(map(has_stopped, running("{token}"))))
    return started
"""


def outcome_of(directory: Path, token: str, text: str) -> tuple[int, str]:
    """Run tests in a pytest of their own; give its exit code and what it said."""
    file = directory / "test_of_its_own.py"
    file.write_text(_HEAD.format(token=token) + text)
    plugins = ["-p", "tests.fixtures.servers.postgres", "-p", "tests.fixtures.leftovers"]
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugins, "-c", os.devnull]
    argv += ["-rN", "--rootdir", str(directory), str(file)]  # no summary, which repeats errors
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_what_a_test_leaves_is_told_and_ends(tmp_path: Path, token: str) -> None:
    code, said = outcome_of(
        tmp_path,
        token,
        "def test_child(): start()\n"
        "def test_orphan(): start('setsid', '--fork').wait()\n"
        "def test_next(): pass\n"
        "@pytest.fixture(scope='module')\n"
        "def kept():\n"
        "    with ended(start()) as process: yield process\n"
        "def test_first(kept): pass\n"
        "def test_second(kept): assert kept.poll() is None\n",
    )
    assert code == 1
    for name in ("test_child", "test_orphan"):
        assert str(name) in said
    assert said.count("the test has left processes, which are killed now:") == 2
    assert said.count(f"sh -c kill -STOP $$; : {token}") >= 2
    assert gone(token)


def test_a_signal_ends_what_a_test_has_started() -> None:
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        argv = ["sh", "-c", f"kill -{number} $$"]
        assert subprocess.run(argv, check=False).returncode == -number
