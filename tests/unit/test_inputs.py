"""Files that an operator names: neither a FIFO nor a huge one holds up a command."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from shardctl import inputs
from shardctl.hosts import files
from shardctl.hosts.files import FileRefused
from shardctl.hosts.local import Local
from shardctl.state import migrations
from shardctl.state.migrations import MigrationInvalid

SMALL = b"""\
cluster: photos
shards: {count: 2}
database: {name: app}
nodes:
  a: {host: h, port: 1, shards: 0-1}
"""
MEMORY = 384 << 20
"""Bytes of address space, of which a command with its modules takes half."""


def shardctl(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command that has to end by itself, within little memory."""
    return subprocess.run(
        [sys.executable, "-m", "shardctl", *map(str, arguments)],
        capture_output=True,
        check=False,
        input=stdin,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A FIFO to which no program writes."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def test_a_topology_that_is_a_fifo_is_refused_at_once(fifo: Path) -> None:
    done = shardctl("--topology", fifo, "topology", "check")
    assert str(fifo) in done.stderr.decode()
    assert done.returncode == 2


def test_what_has_no_size_is_read_no_further_than_it_may_be() -> None:
    with pytest.raises(OSError, match="10"):
        inputs.read(Path("/proc/self/status"), 10)


def test_a_migration_is_a_regular_file_of_a_size_to_run(tmp_path: Path) -> None:
    fifo = tmp_path / "0001_fifo.sql"
    os.mkfifo(fifo)
    with pytest.raises(MigrationInvalid, match="0001_fifo"):
        migrations.read(tmp_path)
    fifo.unlink()
    with (tmp_path / "0002_huge.sql").open("wb") as huge:
        huge.truncate(inputs.MOST_SQL + 1)
    with pytest.raises(MigrationInvalid, match="16,777,216"):
        migrations.read(tmp_path)


def test_ids_without_a_line_end_take_no_memory(tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_bytes(SMALL)
    given = ("--topology", tmp_path / "topology.yaml", "decode-id", "-o", "tsv")
    done = shardctl(*given, stdin=b"1\n" + b"9" * (256 << 20) + b"\n2")
    assert [line.split(b"\t")[0] for line in done.stdout.splitlines()] == [b"1", b"2"]
    assert b"'9999" in done.stderr


def test_a_file_on_a_host_is_a_regular_one_of_a_size_to_hold(fifo: Path, tmp_path: Path) -> None:
    with pytest.raises(FileRefused):
        files.read(Local(), fifo)
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate((16 << 20) + 1)
    with pytest.raises(FileRefused):
        files.read(Local(), tmp_path / "huge")
    assert files.read(Local(), tmp_path / "none") is None
