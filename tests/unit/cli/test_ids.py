"""decode-id, encode-id and route, as a user types them."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.commands import command_line, here

if TYPE_CHECKING:
    from pathlib import Path

TOPOLOGY = """\
cluster: photos
shards: {count: 8, schema: 'sh-ard.{id}'}
database: {name: app}
nodes:
  a: {host: 127.0.0.1, port: 6101, shards: 0-3}
  b: {host: "::1", port: 6102, shards: 4-7}
poolers:
  p1: {host: 127.0.0.1, port: 6100, config: p1.ini, aliases: [shard, node]}
"""
KNOWN = "11637205501278089"
IN_SHARD_5 = str((1387263000 << 23) | 5 << 10 | 905)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a directory without a topology."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SHARDCTL_TOPOLOGY", raising=False)
    return tmp_path


@pytest.fixture
def there(empty: Path) -> Path:
    """Work in a directory with a topology.yaml."""
    (empty / "topology.yaml").write_text(TOPOLOGY)
    return empty


@pytest.mark.usefixtures("empty")
def test_encode_id_gives_the_smallest_id_of_a_time_and_shard() -> None:
    time = "2011-09-10T00:28:04.721+02:00"
    done = here("encode-id", "--time", time, "--shard", "1341")
    assert done.stdout == f"{int(KNOWN) - 905}\n"
    assert here("encode-id", "--time", time).stdout == f"{int(KNOWN) >> 23 << 23}\n"


@pytest.mark.usefixtures("there")
def test_route_tells_shard_schema_node_aliases_and_dsn() -> None:
    done = here("route", "--offline", "31341", "-o", "json")
    assert json.loads(done.stdout) == {
        "key": "31341",
        "shard": 5,
        "schema": "sh-ard.5",
        "node": "b",
        "aliases": {"node": "app_b", "shard": "sh-ard.5"},
        "dsn": {
            "node": "host=::1 port=6102 dbname=app",
            "poolers": {"p1": "host=127.0.0.1 port=6100 dbname=sh-ard.5"},
        },
        "map": {"version": None, "from": "file", "node": None},
    }


@pytest.mark.usefixtures("there")
def test_a_reader_that_goes_away_is_no_bug() -> None:
    program = f"{shlex.join(command_line('decode-id', '-o', 'tsv'))} | head -n 1"
    # Over a megabyte, of which a pipe holds 64 kB: head ends while much is left to write.
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", program],  # noqa: S607
        input=f"{IN_SHARD_5}\n" * 30_000,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "bug" not in done.stderr
