"""Record what a release keeps in its databases and prints as JSON, for tests/data.

In a checkout of the release, with this file and tests/fixtures/moves/release.py copied into it:
SHARDCTL_RECORD=DIRECTORY tests/in-memory.sh .venv/bin/pytest tests/record_release.py
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.state.lock import who
from tests.fixtures import commands
from tests.fixtures.moves.release import AFTER, BEFORE, ID, Recorded
from tests.fixtures.moves.stopping import _LOCKS, Mover
from tests.fixtures.servers.postgres import free_run, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOISE = re.compile(r"(?m)^--\n-- .*\n--\n|^-- Dumped .*\n|^\\.*\n|\n\n(?=\n)")
_POINTS = {
    "reserved": "step clone run",
    "fenced": "span drain begin",
    "drained": "span replay begin",
    "promoting": "span promote begin",
    "claimed": "span route begin",
    "routed": "step confirm run",
}
_OPTIONS = json.dumps({"max_pause_s": 10.0, "retain_s": 86400.0})


class Recorder:
    """Writes what a fleet has and shows into a directory."""

    def __init__(self, lab: Recorded, into: Path) -> None:
        self.lab = lab
        self.into = into
        self.moving = False
        """Whether there is a move, whose id is none of the recordings' business."""

    def command(self, line: str) -> str:
        done = commands.here("--topology", str(self.lab.file), *shlex.split(line), "-o", "json")
        assert done.stdout, done.stderr
        return self._plain(done.stdout)

    def dump(self, node: str, *arguments: str) -> str:
        server = self.lab.server(node)
        address = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres", "-d", "app"]
        program = [
            str(server.binaries.directory / "pg_dump"),
            "--column-inserts",
            "--no-owner",
            "--no-comments",
        ]
        out = subprocess.run([*program, *address, *arguments], capture_output=True, check=True)
        return self._plain(_NOISE.sub("", out.stdout.decode()))

    def _plain(self, text: str) -> str:
        """Leave out who recorded it, and where."""
        text = self.lab.plain(text).replace(who(), "ann@ops1")
        return text.replace(self.lab.copy("a").id, ID) if self.moving else text

    def state(self, state: str, *nodes: str) -> None:
        """Record the journals, and what is shown of the move."""
        folder = self.into / state
        folder.mkdir(parents=True, exist_ok=True)
        assert self.lab.copy(nodes[0]).state == state
        tables = [f"--table=shardctl.{name}" for name in ("cluster", "map", "move", "move_step")]
        for node in nodes:
            (folder / f"{node}.sql").write_text(self.dump(node, "--data-only", *tables))
        (folder / "show.json").write_text(self.command("moves show"))

    def kill_at(self, verb: str, state: str) -> None:
        """Let a process work on the move until it is in a state, and kill it there."""
        self.moving = True
        mover = self.mover(verb, _POINTS[state])
        mover.at(_POINTS[state])
        mover.kill()
        wait_for(lambda: not self.lab.ask("a", f"SELECT 1 {_LOCKS}"))

    def mover(self, verb: str, *points: str) -> Mover:
        return Mover([str(self.lab.file), verb, _OPTIONS, *points])


@pytest.fixture
def recorder(server_directory: Path) -> Iterator[Recorder]:
    lab = Recorded(server_directory, free_run(5))
    lab.write()
    lab.init()
    for shard in (2, 3):
        lab.put(shard)
    yield Recorder(lab, Path(os.environ["SHARDCTL_RECORD"]))
    lab.end()


def test_record_a_move_in_each_state(recorder: Recorder) -> None:
    base = recorder.dump("a")
    recorder.into.mkdir(parents=True, exist_ok=True)
    (recorder.into / "base.sql").write_text(base)
    recorder.kill_at("start", "reserved")
    recorder.state("reserved", "a")
    for state in ("fenced", "drained"):
        recorder.kill_at("resume", state)
        recorder.state(state, "a")
    wait_for(lambda: recorder.lab.copy("a").state == "undone")
    recorder.state("undone", "a")
    recorder.kill_at("resume", "promoting")
    recorder.state("promoting", "a")
    for state in ("claimed", "routed"):
        recorder.kill_at("resume", state)
        recorder.state(state, "c", "a")
    assert recorder.mover("resume").end() == 0
    recorder.state("unconfirmed", "c", "a")


def test_record_a_move_that_is_aborted_and_one_that_is_done(recorder: Recorder) -> None:
    recorder.kill_at("start", "reserved")
    assert recorder.mover("abort").end() == 0
    recorder.state("aborted", "a")
    with recorder.lab.connect("a") as session:
        session.execute("DELETE FROM shardctl.move")
    recorder.moving = False
    shown: dict[str, Any] = {name: recorder.command(line) for name, line in BEFORE.items()}
    assert recorder.mover("start").end() == 0
    recorder.moving = True
    recorder.state("done", "c", "a")
    recorder.lab.later()
    shown |= {name: recorder.command(line) for name, line in AFTER.items()}
    folder = recorder.into / "json"
    folder.mkdir()
    for name, text in shown.items():
        (folder / f"{name}.json").write_text(text)
