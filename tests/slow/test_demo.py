"""`demo` from the command line: rows go through a real PgBouncer, and nothing is left behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.demo.tour import ROWS
from shardctl.postgres import binaries
from shardctl.topology import loader
from tests.fixtures.servers.postgres import _naming

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.fixture
def place(server_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the directory in which the demo makes its own."""
    place = server_directory / "place"
    place.mkdir()
    place.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setenv("XDG_STATE_HOME", str(server_directory / "state"))
    return place


def shardctl(*words: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, "-m", "shardctl", *words],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )


def assert_nothing_left(place: Path) -> None:
    assert list(place.iterdir()) == []
    assert _naming(place) == []


def told_of_the_moves(said: str) -> None:
    """See that shards went to two new nodes and one that served, and that nothing was lost."""
    for shards, how in (("2-3 --to c", "cloned a"), ("6-7 --to d", "cloned b"),
                        ("1 --to b", "streamed from a")):  # fmt: skip
        done = rf"shardctl move-shards {shards} +{how}; clients waited [0-9]+ ms"
        assert re.search(done, said)
    assert re.search(r"[0-9,]+ operations: 8 clients, 50 logins a second", said)
    assert re.search(r"longest wait of a login +[0-9]+ ms on moved shards, [0-9]+ ms else", said)
    assert re.search(r"[0-9,]+ rows: 0 errors, 0 lost, 0 duplicates", said)
    assert re.search(r"shardctl verify, prune +all is well, [0-9.]+ MB freed", said)


def test_the_demos_rows_go_through_a_pooler_and_what_is_kept_can_be_removed(
    place: Path, pgbouncer_program: str
) -> None:
    del pgbouncer_program
    done = shardctl("demo", "--keep")
    assert done.returncode == 0, done.stderr
    assert f"{8 * ROWS:,} through PgBouncer, by shardctl.router" in done.stdout
    assert f"{8 * ROWS:,} distinct, 0 in a wrong shard" in done.stdout
    told_of_the_moves(done.stdout)

    exported = re.search(r"export SHARDCTL_TOPOLOGY=(\S+)", done.stderr)
    assert exported is not None
    topology = loader.load(Path(exported[1]))
    # As it says that one can look around, and how one ends it.
    routed = shardctl("--topology", exported[1], "route", "31341", "-o", "json")
    [login] = json.loads(routed.stdout)["dsn"]["poolers"].values()
    with psycopg.connect(login, user=topology.database.app_roles[0]) as client:
        first = client.execute("SELECT count(*) FROM photos_by_user").fetchone()
        assert first == (ROWS,)
    told = shardctl("--topology", exported[1], "sandbox", "down", "--delete", "--yes")
    assert told.returncode == 0, told.stderr
    kept = sorted(path.name for path in topology.path.parent.iterdir())
    assert kept == ["migrations", "topology.yaml"]
    assert _naming(place) == []


@pytest.mark.embedded
def test_later_versions_of_postgresql_move_shards_too(
    place: Path, pgbouncer_program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del pgbouncer_program
    [directory] = [
        path
        for path in binaries.embedded_directories()
        if binaries.find(path, account=None).major == 18
    ]
    monkeypatch.setenv(binaries.VARIABLE, str(directory))
    done = shardctl("demo")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"(?m)^ [abcd] +primary +18\.\d+ ", done.stdout)) == 4
    told_of_the_moves(done.stdout)
    assert_nothing_left(place)
