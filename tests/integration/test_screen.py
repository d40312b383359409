"""Texts of servers that a terminal would obey, a spreadsheet would calculate, a log would show."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.commands import command_line
from tests.fixtures.processes import ended

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.fleets.rows import Stated

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ATTACK = "\x1b[2J\x9b31m\x7f\u202e\b\rforged\nshardctl: all is well"
SHOWN = r"\x1b[2J\x9b31m\x7f\u202e\x08\rforged" + "\n  shardctl: all is well"
TEXT = "U&'" + "".join(f"\\{ord(c):04x}" for c in ATTACK) + "'"
WARNS = f"DO $$ BEGIN RAISE WARNING '%', {TEXT}; END $$"
FAILS = f"DO $$ BEGIN RAISE '%', {TEXT}; END $$"


def on_terminal(*arguments: str) -> str:
    """Run a command on a terminal of its own, and leave out what moves the cursor and colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color"}
    shown = b""
    with ended(
        subprocess.Popen(
            command_line(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
    ) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # what Linux says at a terminal's end
            while more := os.read(ours, 65536):
                shown += more
        process.wait(60)
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))


@pytest.mark.parametrize("output", ["table", "tsv", "csv", "json"])
def test_no_value_warning_or_error_of_a_server_reaches_the_terminal_as_it_is(
    fleet_rows: Stated, output: str
) -> None:
    for statement in (f'{WARNS}; SELECT {TEXT} AS "{ATTACK}"', FAILS):
        done = fleet_rows.sql(statement, "-o", output, "--shards", "5")
        for stream in (done.stdout, done.stderr):
            assert not OBEYED.search(stream)
            assert "\nshardctl: all is well" not in stream or output in ("table", "csv")
    assert f"shardctl: shard 5: {SHOWN}" in done.stderr


def test_on_a_terminal_a_warning_forges_no_line_also_while_progress_is_drawn(
    fleet_rows: Stated,
) -> None:
    fleet = str(fleet_rows.fleet.write())
    shown = on_terminal("--topology", fleet, "sql", WARNS, "--shards", "5")
    assert f"note: shard 5: WARNING: {SHOWN}" in shown.replace("\r\n", "\n")


def test_a_spreadsheet_calculates_no_cell_of_csv_but_numbers(fleet_rows: Stated) -> None:
    values = ["=1+1", "+49 30", "-2+3", "@a", "-5", "-.5e3", "+7", "-Infinity", "a=1", " =1"]
    rows = ", ".join(f"({n}, '{value}')" for n, value in enumerate(values))
    statement = f"SELECT v FROM (VALUES {rows}) t (n, v) ORDER BY n"
    done = fleet_rows.sql(statement, "-o", "csv", "--shards", "5")
    found = [line.partition(",")[2] for line in done.stdout.splitlines()[1:]]
    assert found == [
        "'=1+1", "'+49 30", "'-2+3", "'@a", "-5", "-.5e3", "+7", "-Infinity", "a=1", "' =1"
    ]  # fmt: skip


def test_a_statement_forges_no_line_of_the_log(fleet_rows: Stated, tmp_path: Path) -> None:
    statement = "SELECT 1;\n2026-01-01T00:00:00.000Z 1 INFO shardctl: forged \x1b[2J"
    fleet_rows.fleet.shardctl("sql", statement, XDG_STATE_HOME=str(tmp_path))
    [log] = (tmp_path / "shardctl").glob("*.log")
    text = log.read_text()
    assert r"\n2026-01-01T00:00:00.000Z 1 INFO shardctl: forged \x1b[2J" in text
    assert not OBEYED.search(text)
    assert not [line for line in text.splitlines() if line.startswith("2026-01-01")]
