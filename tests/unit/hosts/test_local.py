"""Commands of another user on this machine."""

from __future__ import annotations

import os
import pwd
import shutil
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import accounts
from shardctl.hosts.local import Local

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")

_WHO = "grep -E '^(Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapAmb):' /proc/self/status; pwd; env | sort"


def test_a_script_runs_as_another_user() -> None:
    account = accounts.server_account(None)
    assert account is not None
    number = pwd.getpwnam(account).pw_uid
    said = Local().run(["sh", "-c", _WHO], user=account, env={"ONE": "1"}).stdout
    assert f"Uid:\t{number}\t{number}\t{number}\t{number}\n" in said
    assert "CapEff:\t0000000000000000\n" in said
    assert "ONE=1\n" in said


def test_root_renames_by_itself_only_where_that_user_could(tmp_path: Path) -> None:
    new, path = tmp_path / "new", tmp_path / "file"
    new.write_text("text")
    assert not Local().renamed(new, path, user="nobody")
    assert new.exists()
    shutil.chown(tmp_path, "nobody")
    assert Local().renamed(new, path, user="nobody")
    assert path.read_text() == "text"
