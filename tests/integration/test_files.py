"""Files on a host: whole or not at all, whatever their names, their text and their place."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import files
from shardctl.hosts.files import BACKUP, FileRefused
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Local()
ROOT = os.geteuid() == 0
OTHER = "nobody"

PATHS = [
    "plain.ini",
    "with blanks  and\ttabs.ini",
    'it\'s "quoted".ini',
    "$HOME `id` $(id) \\n * ?.ini",
    "-n",
    "--help",
    "two\nlines.ini",
    "größe.ini",
    "-dir/--/file.ini",
]


@pytest.fixture
def folder(server_directory: Path) -> Path:
    """A directory into which every user may go, with names that a shell would trip over."""
    path = server_directory / "it's a $folder"
    path.mkdir()
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def refusal(action: object, *arguments: object, **options: object) -> FileRefused:
    assert callable(action)
    with pytest.raises(FileRefused) as refused:
        action(HERE, *arguments, **options)
    assert str(arguments[0]) in refused.value.message
    assert "\n" not in refused.value.message
    return refused.value


def test_a_file_of_any_name_is_written_read_and_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for path in (*(folder / name for name in PATHS), Path("-rf")):
        path.parent.mkdir(exist_ok=True, parents=True)
        others = names(path.parent)
        assert files.read(HERE, path) is None
        assert files.size(HERE, path) == 0
        assert files.place(HERE, path).path == files.place_of(HERE, path) == str(folder / path)
        files.write(HERE, path, "one\n")
        files.write(HERE, path, "two\nthree\n")
        assert files.read(HERE, path) == path.read_text() == "two\nthree\n"
        assert files.size(HERE, path) == 10
        assert files.tail(HERE, path, since=4) == ["three"]
        assert names(path.parent) - others == {path.name, path.name + BACKUP}
        assert Path(f"{path}{BACKUP}").read_text() == "one\n"
        files.remove(HERE, path)
        assert names(path.parent) - others == {path.name + BACKUP}


def test_mode_and_owner_stay(folder: Path) -> None:
    path = folder / "file"
    path.write_text("old")
    path.chmod(0o640)
    if ROOT:
        account = pwd.getpwnam(OTHER)
        os.chown(path, account.pw_uid, account.pw_gid)
    before = path.stat()
    files.write(HERE, path, "new")
    after = path.stat()
    assert path.read_text() == "new"
    assert after.st_mode == before.st_mode
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)


def test_of_a_link_the_target_is_replaced_and_the_link_stays(folder: Path) -> None:
    (folder / "there").mkdir()
    target = folder / "there" / "target"
    target.write_text("old")
    link, second = folder / "link", folder / "second"
    link.symlink_to("there/target")
    second.symlink_to(link)
    files.write(HERE, second, "new")
    assert (link.is_symlink(), second.is_symlink()) == (True, True)
    assert target.read_text() == "new"
    assert names(folder / "there") == {"target", f"target{BACKUP}"}
    assert files.place(HERE, second).path == files.place_of(HERE, second) == str(target)
    assert files.size(HERE, second) == 3


def test_what_may_not_be_read_is_told_and_never_taken_for_absent(folder: Path) -> None:
    user = OTHER if ROOT else None
    path = folder / "closed" / "deeper" / "file"
    path.parent.mkdir(parents=True)
    path.write_text("secret")
    path.chmod(0o000)
    assert "denied" in refusal(files.read, path, user=user).reason
    refusal(files.size, path, user=user)
    assert "denied" in refusal(files.tail, path, since=0, user=user).reason
    (folder / "closed").chmod(0o600)
    refusal(files.read, path, user=user)
    refusal(files.size, path, user=user)
    (folder / "closed").chmod(0o700)


@pytest.fixture
def small(folder: Path) -> Iterator[Path]:
    """A file system of 1 MB with a file of 300 kB on it."""
    if not ROOT:
        pytest.skip("only root mounts a file system")
    place = folder / "small"
    place.mkdir()
    try:
        HERE.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)])
    except CommandFailed as error:
        pytest.skip(f"no file system may be mounted here: {error}")
    try:
        (place / "file").write_text("old" * 100_000)
        yield place
    finally:
        HERE.run(["umount", str(place)])


def test_a_full_disk_leaves_the_old_file_and_nothing_else(small: Path) -> None:
    (small / "other").write_bytes(b"\0" * (shutil.disk_usage(small).free - 100_000))
    refusal(files.write, small / "file", "new" * 200_000)
    assert (small / "file").read_text() == "old" * 100_000
    assert names(small) == {"file", "other"}
