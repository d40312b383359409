"""Which PostgreSQL programs are found, and what is said when none fit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import accounts
from shardctl.postgres import binaries
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from pathlib import Path

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as others")


def programs(directory: Path, version: str, *, names: tuple[str, ...] = binaries.PROGRAMS) -> Path:
    directory.mkdir(parents=True)
    for name in names:
        program = directory / name
        program.write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        program.chmod(0o755)
    return directory


@pytest.fixture
def bare_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A system of which only the directories below the result are seen."""
    root = tmp_path / "lib"
    monkeypatch.setattr(binaries, "SYSTEM", (f"{root}/*/bin",))
    monkeypatch.setattr(binaries, "_root", lambda: None)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv(binaries.VARIABLE, raising=False)
    return root


def test_bin_directory_comes_before_the_environment_and_the_system(
    bare_system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(bare_system / "18" / "bin", "18.1")
    named = programs(tmp_path / "named", "14.2")
    variable = programs(tmp_path / "variable", "16.3")
    monkeypatch.setenv(binaries.VARIABLE, str(variable))
    assert binaries.find(named, account=None).directory == named
    assert binaries.find(None, account=None).directory == variable


def test_versions_below_14_are_refused(bare_system: Path, tmp_path: Path) -> None:
    old = programs(tmp_path / "old", "13.14")
    with raises_code("binaries_refused", match="has PostgreSQL 13"):
        binaries.find(old, account=None)
    programs(bare_system / "13" / "bin", "13.14")
    with raises_code("no_binaries"):
        binaries.find(None, account=None)


@needs_root
@pytest.mark.usefixtures("bare_system")
def test_programs_that_the_servers_user_cannot_reach_are_refused_with_the_remedy(
    server_directory: Path,
) -> None:
    closed = server_directory / "closed"
    programs(closed / "bin", "16.1")
    closed.chmod(0o700)
    account = accounts.server_account(None)
    assert binaries.find(closed / "bin", account=None).major == 16
    with raises_code("binaries_refused"):
        binaries.find(closed / "bin", account=account)


@needs_root
def test_embedded_programs_that_cannot_be_reached_are_copied_once(
    bare_system: Path, server_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not bare_system.exists()
    package = server_directory / "closed" / binaries.PACKAGE
    directory = programs(package / "pginstall18" / "bin", "18.1")
    (package.parent / f"{binaries.PACKAGE}.libs").mkdir()
    package.parent.chmod(0o700)
    (directory / "initdb").chmod(0o700)
    monkeypatch.setattr(binaries, "_root", lambda: package)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.6.0")
    monkeypatch.setattr(binaries, "CACHE", server_directory / "cache")
    (server_directory / "cache").mkdir()

    found = binaries.find(None, account=accounts.server_account(None))
    assert found.directory.is_relative_to(server_directory / "cache")
    assert (found.directory / "initdb").stat().st_mode & 0o777 == 0o755
    made = found.directory.stat().st_mtime_ns
    assert binaries.find(directory, account=accounts.server_account(None)) == found
    assert found.directory.stat().st_mtime_ns == made


@needs_root
def test_a_cache_that_others_may_write_is_refused(
    server_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "CACHE", server_directory / "cache")
    (server_directory / "cache").mkdir()
    (server_directory / "cache").chmod(0o777)
    with raises_code("cache_refused"):
        binaries.copy_embedded(next(binaries.embedded_directories()))
