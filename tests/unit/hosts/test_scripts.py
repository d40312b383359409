"""The shell programs that ship with shardctl."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import shardctl
from shardctl.hosts import scripts

NAMES = sorted(file.stem for file in (Path(shardctl.__path__[0]) / "scripts").glob("*"))


@pytest.mark.parametrize("name", NAMES)
def test_every_shell_understands_it(name: str) -> None:
    source = scripts.source(name)
    assert source.startswith("# ")
    subprocess.run(["sh", "-n"], input=source, text=True, check=True)  # noqa: S607
