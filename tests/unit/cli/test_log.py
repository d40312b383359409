"""The log of a user without a name and a home, as containers have."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest

from shardctl.cli import log

if TYPE_CHECKING:
    from pathlib import Path


def test_a_user_without_a_home_has_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
    with pytest.raises(OSError, match="XDG_STATE_HOME"):
        log.log_file()
    assert log.record_bug("a traceback") == "the lines above"
    assert capsys.readouterr().err == "a traceback\n"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert log.log_file().is_relative_to(tmp_path)


def test_a_home_is_enough_without_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    assert log.log_file().is_relative_to(tmp_path)
