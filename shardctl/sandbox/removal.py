"""The files of a sandbox: marking, checking and removing them."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.postgres import directory, pidfile
from shardctl.topology.build import PASSFILE

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.postgres.pidfile import PidFile

MARKER = "shardctl.sandbox"
"""A file in every data directory that `sandbox up` created."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A data directory: its major version, its running server, whether the sandbox made it."""

    major: str | None
    server: PidFile | None
    ours: bool


def marker(cluster: str, node: str) -> str:
    """Return the text of the marker file."""
    return (
        f"Created by `shardctl sandbox up` for node {node} of cluster {cluster}.\n"
        "`shardctl sandbox down --delete` removes directories with this file.\n"
    )


def look(data_directory: Path) -> Seen:
    """Check a data directory, existing or not; raises directory_refused."""
    with directory.translated(data_directory):
        return Seen(
            directory.major(data_directory),
            pidfile.alive(data_directory),
            (data_directory / MARKER).exists(),
        )


def remove(data_directory: Path) -> tuple[tuple[Path, ...], tuple[Path, str] | None]:
    """Remove a stopped server's directory if it is marked, its log, and leftovers of initdb.

    Returns the removed paths, and the directory with the reason if it was kept.
    """
    with directory.translated(data_directory):
        log, new = directory.log(data_directory), directory.being_made(data_directory)
        if log.is_symlink():
            log.unlink()  # what it leads to stays
        there = [path for path in (data_directory, new) if path.exists()]
        if not there:
            # An empty log is the lock of an `up` that failed; other logs may not be the sandbox's.
            if log.exists() and directory.size(log) == 0:
                log.unlink()
            return (), None
        if data_directory.is_symlink():
            return (), (data_directory, "it is a symbolic link")
        if data_directory.exists() and not (data_directory / MARKER).exists():
            return (), (data_directory, f"`sandbox up` did not create it: it has no {MARKER}")
        with directory.alone(data_directory, None):
            if pidfile.alive(data_directory) is not None:
                return (), (data_directory, "a server has just started in it")
            directory.remove_unfinished(data_directory)
            _empty(data_directory)
            log.unlink()
            if data_directory.exists():
                shutil.rmtree(data_directory)
        _remove_parent(data_directory.parent)
        return (*there, log), None


def _empty(data_directory: Path) -> None:
    """Remove all but the marker, so that a killed removal can be repeated."""
    for entry in data_directory.iterdir() if data_directory.exists() else ():
        if entry.name == MARKER:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _remove_parent(parent: Path) -> None:
    """Remove the directory of all data directories after the last of them, and the password."""
    with contextlib.suppress(OSError):  # another thread has removed it
        if {entry.name for entry in parent.iterdir()} == {PASSFILE}:
            (parent / PASSFILE).unlink()
    if parent.name.startswith((".sandbox", "shardctl-sandbox-")):
        with contextlib.suppress(OSError):  # it is not empty
            parent.rmdir()
