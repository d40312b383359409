"""`metrics --textfile` of a fleet in which nothing answers: what becomes of the file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.commands import command_line, here
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import free_ports

KILLED = """\
import os
os.fsync = lambda _: os.kill(os.getpid(), 9)
from shardctl.cli.app import main
main()
"""


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the command for a cluster of a strange name, whose one node is down."""
    (port,) = free_ports(1)
    file = tmp_path / "topology.yaml"
    file.write_text(
        "cluster: 'fo\"to\\s / 1'\nshards: {count: 2}\ndatabase: {name: app}\n"
        f"nodes:\n  a: {{host: 127.0.0.1, port: {port}, shards: 0-1}}\n"
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return ["--topology", str(file), "metrics"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "textfiles"
    made.mkdir()
    return made


def test_a_cluster_of_any_name_has_its_file(arguments: list[str], directory: Path) -> None:
    done = here(*arguments, "--textfile", str(directory))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    [file] = directory.iterdir()
    assert file.name == "shardctl_fo%22to%5Cs%20%2F%201.prom"
    assert file.stat().st_mode & 0o777 == 0o644
    assert 'shardctl_node_up{cluster="fo\\"to\\\\s / 1",node="a"} 0\n' in file.read_text()


@pytest.mark.parametrize("kind", ["missing", "a file", "not writable"])
def test_a_directory_that_cannot_be_used_is_one_error_with_a_hint(
    arguments: list[str], directory: Path, kind: str
) -> None:
    # Not even root may write into /proc.
    path = {"missing": directory / "none", "a file": directory / "file"}.get(kind, Path("/proc"))
    (directory / "file").touch()
    done = here(*arguments, "--textfile", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    message, hint = done.stderr.splitlines()
    assert message.startswith(f"shardctl: {path}")
    assert "node_exporter" in hint


def test_a_run_that_is_killed_while_it_writes_leaves_the_file_before(
    arguments: list[str], directory: Path
) -> None:
    here(*arguments, "--textfile", str(directory))
    [file] = directory.iterdir()
    before = file.read_text()
    words = [sys.executable, "-c", KILLED, *arguments, "--textfile", str(directory)]
    assert subprocess.run(words, check=False, timeout=60).returncode == -signal.SIGKILL
    assert file.read_text() == before
    assert list(directory.glob("*.prom")) == [file]
    assert here(*arguments, "--textfile", str(directory)).returncode == 0
    assert file.read_text() != before


def test_runs_at_once_all_succeed(arguments: list[str], directory: Path) -> None:
    command = [*command_line(*arguments), "--textfile", str(directory)]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    [file] = directory.iterdir()
    assert file.read_text().count("# TYPE shardctl_scrape_timestamp_seconds gauge\n") == 1


def test_a_reader_that_leaves_is_no_error_to_report(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = command_line(*arguments)
    with ended(subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE)) as process:
        os.close(writing)
        _, reported = process.communicate(timeout=60)
    assert (process.returncode, reported) == (1, b"")
