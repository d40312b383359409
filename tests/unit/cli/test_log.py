"""The log of a user without a name and a home, as containers have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardctl.cli import log


def test_a_user_without_a_home_has_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    with pytest.raises(OSError, match="XDG_STATE_HOME"):
        log.log_file()
    assert log.record_bug("a traceback") == "the lines above"
    assert capsys.readouterr().err == "a traceback\n"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert log.log_file().is_relative_to(tmp_path)


_WARNED = """
import logging
from shardctl.cli import log
log.open_log(verbose=False)
logging.getLogger("psycopg").warning("query cancellation interrupted")
print(log.log_file())
"""


def test_what_psycopg_warns_of_is_in_the_log_and_not_on_the_screen(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WARNED],
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert "psycopg:" in Path(done.stdout.strip()).read_text()
