"""Completion in bash and fish, as an operator has it who presses TAB."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from shardctl.checks.verify import CHECKS
from shardctl.cli.app import COMMANDS
from tests.fixtures.commands import here

if TYPE_CHECKING:
    from pathlib import Path

SHELLS = {
    "bash": """
        source completion
        COMP_LINE='{line}' COMP_POINT={point} COMP_WORDS=({line}{empty}) COMP_CWORD={last}
        _shardctl_completion shardctl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "fish": "source completion; complete --do-complete '{line}' | cut -f 1",
}


@pytest.fixture(params=["bash", pytest.param("fish", marks=pytest.mark.long)])
def shell(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed: apt-get install {name}")
    return name


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Give a directory with a topology, and a program `shardctl` in its `bin`."""
    done = here("--topology", str(tmp_path / "topology.yaml"), "sandbox", "new", "--shards", "8",
                "--nodes", "2", "--spare", "1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    program = tmp_path / "bin" / "shardctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m shardctl "$@"\n')
    program.chmod(0o755)
    return tmp_path


def run(shell: str, script: str, directory: Path) -> str:
    path = f"{directory / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PATH": path, "HOME": str(directory)},
    )
    assert not done.stderr
    return done.stdout


def completed(shell: str, line: str, directory: Path) -> set[str]:
    """Give what the shell offers at the end of a line."""
    if not (directory / "completion").exists():
        script = run(shell, f"env _SHARDCTL_COMPLETE=source_{shell} shardctl", directory)
        (directory / "completion").write_text(script)
    words = line.split()
    empty = " ''" if line.endswith(" ") else ""
    last = len(words) - (0 if empty else 1)
    script = SHELLS[shell].format(line=line.strip() if shell != "fish" else line, empty=empty,
                                  last=last, point=len(line))  # fmt: skip
    return {word.strip() for word in run(shell, script, directory).splitlines() if word.strip()}


OFFERED = {
    "shardctl ": set(COMMANDS),
    "shardctl moves a": {"abort"},
    "shardctl move-shards 2 --to ": {"a", "b", "c"},
    "shardctl pgbouncer diff ": {"p1"},
    "shardctl verify --check ": set(CHECKS),
    "shardctl migrate --d": {"--dry-run", "--detailed-exitcode"},
    "shardctl run true --on p": {"poolers", "p1"},
}


def test_a_shell_completes(shell: str, directory: Path) -> None:
    for line, offered in OFFERED.items():
        found = completed(shell, line, directory)
        assert found == offered, line
    # It offers nothing and says nothing where the topology is wrong.
    (directory / "topology.yaml").write_text("cluster: [")
    assert not completed(shell, "shardctl move-shards 2 --to ", directory) - {
        "bin", "completion", "topology.yaml", "bin/"
    }  # fmt: skip
