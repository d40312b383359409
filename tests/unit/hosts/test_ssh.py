"""What goes to a host and what is known of it, without one."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import openssh
from shardctl.hosts.host import HostUnreachable
from shardctl.hosts.openssh import Wrapped

if TYPE_CHECKING:
    from pathlib import Path


def test_neither_environment_nor_input_is_in_what_a_process_list_shows() -> None:
    wrapped = Wrapped(["psql"], "postgres", {"PGPASSWORD": "s3cret"}, "s3cret")
    script = wrapped.script()
    assert b"export PGPASSWORD=s3cret\n" in script
    assert "s3cret" not in wrapped.line(len(script))
    assert "s3cret" not in repr(wrapped)


def test_a_user_is_quoted() -> None:
    assert " -u 'a b;c' -H " in Wrapped(["true"], "a b;c", {}, "").line(1)


@pytest.mark.parametrize("part", range(0, 100, 20))
def test_a_script_that_is_cut_off_is_a_syntax_error(part: int) -> None:
    script = Wrapped(["echo", "it runs"], None, {}, "").script()
    cut = script[: len(script) * part // 100]
    argv = ["sh", "-c", cut.decode()]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert b"it runs" not in done.stdout


def test_a_machine_without_ssh_keygen_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostUnreachable, match="ssh-keygen"):
        openssh.entries([tmp_path / "known_hosts"], "db1")
