"""Drivers at work through aliases of shards and of nodes while shards move: docs/poolers.md.

See `tests/slow/drivers/common.py` for what each program does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.processes import ended
from tests.fixtures.servers.pgbouncer import Admin
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.moves.own import Lab

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/slow/drivers"
JAR = Path("/usr/share/java/postgresql.jar")
GO = Path("/usr/share/gocode")
NODE = os.environ.get("NODE_PATH", "/usr/share/nodejs")
WRITES = (
    "CREATE TABLE writes (id bigint PRIMARY KEY DEFAULT next_id(),"
    " token bigint NOT NULL, version integer NOT NULL DEFAULT 0);"
)
ENOUGH = 20
"""Tokens before the move, and again after it."""


def python(name: str) -> list[str]:
    if find_spec(name) is None:
        pytest.skip(name)
    return [sys.executable, "-m", f"tests.slow.drivers.with_{name}"]


def node(_: str) -> list[str]:
    program = shutil.which("node")
    if program is None or not (Path(NODE) / "pg").is_dir():
        pytest.skip("node-pg")
    return [program, str(PROGRAMS / "with_pg.js")]


def java(_: str) -> list[str]:
    program = shutil.which("java")
    if program is None or shutil.which("javac") is None:
        pytest.skip("default-jdk-headless")
    if not JAR.exists():
        pytest.skip("libpostgresql-jdbc-java")
    return [program, "-cp", str(JAR), str(PROGRAMS / "WithJdbc.java")]


def go(_: str) -> list[str]:
    program = shutil.which("go")
    if program is None or not (GO / "src/github.com/jackc/pgx/v4").is_dir():
        pytest.skip("golang-github-jackc-pgx-v4-dev")
    return [program, "run", str(PROGRAMS / "with_pgx.go")]


DRIVERS: dict[str, Callable[[str], list[str]]] = {
    "psycopg2": python,
    "asyncpg": python,
    "node-postgres": node,
    "jdbc": java,
    "pgx": go,
}


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_driver_works_while_shards_move(fleet_own: Lab, driver: str) -> None:
    command = DRIVERS[driver](driver)
    (fleet_own.directory / "migrations" / "0002_writes.sql").write_text(WRITES)
    assert fleet_own.here("migrate").returncode == 0
    [pooler] = fleet_own.topology.poolers.values()
    if driver == "jdbc":
        config = fleet_own.directory / "p1" / "pgbouncer.ini"
        ignored = "ignore_startup_parameters = extra_float_digits\npool_mode ="
        config.write_text(config.read_text().replace("pool_mode =", ignored))
        with Admin(pooler, fleet_own.topology.database, purpose="test") as console:
            console.execute("RELOAD")
    where = [str(pooler.host), str(pooler.port), "app", "app"]
    process = subprocess.Popen(
        [*command, *where],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "NODE_PATH": NODE, "GOPATH": str(GO), "GO111MODULE": "off"},
        text=True,
    )
    told: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        told.extend(iter(process.stdout.readline, ""))

    reader = threading.Thread(target=read)
    with ended(process):
        reader.start()
        for _ in ("before the move", "after it"):
            aim = len(told) + 2 * ENOUGH
            wait_for(lambda aim=aim: len(told) > aim or process.poll() is not None)  # type: ignore[misc]
            if fleet_own.leads("shard2") == "a" and process.poll() is None:
                fleet_own.move([2, 3], "b")
        assert process.poll() is None, told
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(60) == 0, told
    reader.join(60)
    for shard in "23":
        kept = [int(line.split()[1]) for line in told if line.startswith(f"{shard} ")]
        found = fleet_own.ask("b", f"SELECT token FROM shard{shard}.writes")
        assert sorted(token for (token,) in found) == kept == [*range(1, len(kept) + 1)]
