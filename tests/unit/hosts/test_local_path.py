"""Programs that are missing, with a PATH that another user has left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.skipif(os.geteuid() == 0, reason="root may search every directory")
@pytest.mark.parametrize("argv", [["no-such-command"], ["sh", "-c", "no-such-command"]])
def test_a_directory_that_may_not_be_searched_makes_no_missing_program_a_closed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    monkeypatch.setenv("PATH", os.pathsep.join([str(closed), os.environ["PATH"]]))
    with pytest.raises(CommandFailed) as failed:
        Local().run(argv)
    assert failed.value.completed.code == 127


def test_the_rest_of_path_is_kept_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(here), str(tmp_path / "none"), "/bin", ""]))
    done = Local().run(["sh", "-c", 'echo "$PATH"'])
    assert done.stdout == f"{here}{os.pathsep}/bin{os.pathsep}\n"
