"""Commands of another user on this machine."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import accounts, local
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")

_WHO = "grep -E '^(Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapAmb):' /proc/self/status; pwd; env | sort"


def test_a_script_runs_as_another_user_in_the_same_way_without_setpriv(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if local._setpriv() is None:
        pytest.skip("there is no setpriv here")
    account = accounts.server_account(None)
    assert account is not None
    number = pwd.getpwnam(account).pw_uid
    by_setpriv = Local().run(["sh", "-c", _WHO], user=account, env={"ONE": "1"}).stdout
    assert f"Uid:\t{number}\t{number}\t{number}\t{number}\n" in by_setpriv
    assert "ONE=1\n" in by_setpriv
    monkeypatch.setattr(local, "_setpriv", lambda: None)
    assert Local().run(["sh", "-c", _WHO], user=account, env={"ONE": "1"}).stdout == by_setpriv


@pytest.mark.parametrize("before", [[], ["sh", "-c", 'exec "$1"', "sh"]])
def test_a_program_runs_only_where_the_other_user_may_go(
    server_directory: Path, before: list[str]
) -> None:
    program = server_directory / "closed" / "program"
    program.parent.mkdir(mode=0o700)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with pytest.raises(CommandFailed) as refused:
        Local().run([*before, str(program)], user=accounts.server_account(None))
    assert "Permission denied" in refused.value.completed.stderr
