"""The question before a move, a prune or a calling off, at a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
from pathlib import Path

import pytest

from tests.fixtures.servers.postgres import wait_for

ASK = """
from shardctl.cli import app
from shardctl.cli.options import Settings
from shardctl.cli.output import confirm
from shardctl.errors import ShardctlError
import sys
try:
    confirm("Abort move 5f3a9c1e?", yes=False)
except ShardctlError as error:
    app._report(error, Settings())
    sys.exit(error.exit_code)
"""


def reads_its_input(process: int) -> bool:
    """Tell whether it waits in a system call whose first argument is descriptor 0."""
    return Path(f"/proc/{process}/syscall").read_text().split()[1:2] == ["0x0"]


def answered(keys: bytes) -> tuple[int, str]:
    """Answer at a terminal of its own; give the exit code and what was shown."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", ASK])  # noqa: S606  # no shell
    shown = b""
    with contextlib.suppress(OSError):  # what Linux says at a terminal's end
        while b"[y/N]" not in shown:
            shown += os.read(terminal, 4096)
        # Python does not see a signal that comes between its prompt and its read.
        wait_for(lambda: reads_its_input(child))
        os.write(terminal, keys)
        while more := os.read(terminal, 4096):
            shown += more
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), shown.decode()


@pytest.mark.parametrize(
    ("keys", "code"), [(b"y\n", 0), (b"n\n", 1), (b"\x03", 130), (b"\x04", 130)]
)
def test_ctrl_c_at_the_question_is_an_interruption(keys: bytes, code: int) -> None:
    ended, shown = answered(keys)
    assert ended == code
    assert "Aborted" not in shown
