"""What the start of a test fleet costs the tests of an application."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from shardctl import testing
from tests.bench.measure import Row, seconds, versus

if TYPE_CHECKING:
    from tests.bench.measure import Scale

SHARDS = 16
_MIGRATION = "".join(
    f"CREATE TABLE {table} (id bigint PRIMARY KEY DEFAULT next_id(), body text UNIQUE);\n"
    for table in ("photos", "likes", "tags")
)


def start(scale: Scale) -> list[Row]:
    """Time a fleet's start from the template that the first one has left, and without one."""
    _start()
    name = f"test fleet, 2 nodes: start with {SHARDS} shards from a template"
    against = {"made": ("without one", None)}
    return versus(name, {"kept": _start, "made": _make}, scale.of(5, 1), against, seconds)


def _make() -> float:
    """Start a fleet where no template is."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        usual, tempfile.tempdir = tempfile.tempdir, name
        try:
            return _start()
        finally:
            tempfile.tempdir = usual


def _start() -> float:
    with TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "migrations").mkdir()
        (directory / "migrations" / "0001_tables.sql").write_text(_MIGRATION)
        file = directory / "topology.yaml"
        file.write_text(
            f"cluster: bench\nshards: {{count: {SHARDS}}}\n"
            "database: {name: app, app_roles: [app], migrations: migrations}\n"
            f"nodes:\n  a: {{host: 127.0.0.1, port: 5432, shards: 0-{SHARDS - 1}}}\n"
        )
        began = time.perf_counter()
        with testing.running(file):
            return time.perf_counter() - began
