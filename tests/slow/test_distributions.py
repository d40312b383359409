"""Wheels of both distributions, installed into empty environments: alone, and together."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
PIP = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
USE = """
import importlib.util, sys
from shardctl.router import AsyncShardedDatabase, ShardedDatabase
with ShardedDatabase(sys.argv[1]) as db:
    print(db.node_of(db.shard_of(31341)), db.schema_of(5))
print(*filter(importlib.util.find_spec, ["pydantic", "jinja2", "typer", "fabric"]))
"""
LIST = """
from importlib.metadata import distributions
print(*[one.name for one in distributions()])
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wheels")
    build: list[str | Path] = [
        *PIP,
        "wheel",
        "--no-deps",
        "-w",
        made,
        ROOT,
        ROOT / "shardctl/router",
    ]
    run(sys.executable, *build, cwd=made)
    return made


@pytest.fixture
def installed(tmp_path: Path, wheels: Path) -> Callable[..., Path]:
    def install(*names: str) -> Path:
        """Install distributions into an empty environment; give its Python."""
        python = tmp_path / "venv/bin/python"
        if not python.exists():
            run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
        run(python, *PIP, "install", "--find-links", wheels, *names, cwd=tmp_path)
        return python

    return install


def test_each_file_is_in_one_wheel(wheels: Path) -> None:
    found = [
        {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("shardctl/")}
        for wheel in wheels.glob("*.whl")
    ]
    assert len(found) == 2
    assert not found[0] & found[1]
    listed = run("git", "ls-files", "shardctl", cwd=ROOT).split()
    assert set(listed) <= found[0] | found[1]


def test_the_router_alone_needs_nothing_of_the_operators(
    installed: Callable[..., Path], tmp_path: Path
) -> None:
    python = installed("shardctl-router")
    said = run(python, "-c", USE, ROOT / "topology.yaml", cwd=tmp_path).split("\n")
    assert said == ["b shard5", "", ""]
    names = set(run(python, "-c", LIST, cwd=tmp_path).lower().split())
    assert names - {"pip", "setuptools", "typing_extensions"} == {
        "shardctl-router", "psycopg", "psycopg-binary", "psycopg-pool", "pyyaml",
    }  # fmt: skip


def test_both_are_one_package(installed: Callable[..., Path], tmp_path: Path) -> None:
    installed("shardctl-router")
    python = installed("shardctl")
    assert run(python, "-c", USE, ROOT / "topology.yaml", cwd=tmp_path).startswith("b shard5\n")
    given: list[str | Path] = ["--topology", ROOT / "topology.yaml", "route", "5"]
    assert "shard5" in run(python.with_name("shardctl"), *given, cwd=tmp_path)
    # The router goes on without the operator's side.
    run(python, *PIP, "uninstall", "--yes", "shardctl", cwd=tmp_path)
    assert run(python, "-c", USE, ROOT / "topology.yaml", cwd=tmp_path).startswith("b shard5\n")


def test_a_checkout_can_be_installed_to_be_edited(tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    run(python, *PIP, "install", "-e", ROOT / "shardctl/router", "-e", ROOT, cwd=tmp_path)
    where = "import shardctl.router, shardctl.cli; print(shardctl.__file__)"
    assert run(python, "-c", where, cwd=tmp_path).strip() == str(ROOT / "shardctl/__init__.py")
    assert "0.1.0" in run(python.with_name("shardctl"), "--version", cwd=tmp_path)
