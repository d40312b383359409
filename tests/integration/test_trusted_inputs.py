"""What another user wrote is not obeyed; what umask and links leave open is closed."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shardctl import inputs
from shardctl.topology import loader
from tests.fixtures.refusals import raises_code

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="only root gives files to other users")
SMALL = """\
cluster: photos
shards: {count: 2}
database: {name: app, migrations: migrations/}
nodes:
  a: {host: 127.0.0.1, port: 1, shards: 0-1}
"""
OTHER = "nobody"


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    """A topology of the caller's own, in a directory of the caller's own."""
    (tmp_path / "migrations").mkdir()
    path = tmp_path / "topology.yaml"
    path.write_text(SMALL)
    return path


def give(path: Path) -> None:
    """Let another user own a file."""
    os.chown(path, pwd.getpwnam(OTHER).pw_uid, -1)


def shardctl(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shardctl", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | env,
        timeout=120,
    )


@needs_root
@pytest.mark.parametrize("name", ["topology.yaml", ".", "migrations", "migrations/0001_a.sql"])
def test_a_file_of_another_user_is_not_obeyed(topology: Path, name: str) -> None:
    (topology.parent / "migrations/0001_a.sql").touch()
    loader.load_trusted(topology)
    give(topology.parent / name)
    with raises_code("input_untrusted", match=OTHER):
        loader.load_trusted(topology)
    done = shardctl("--topology", topology, "topology", "check")
    assert done.returncode == 2


@pytest.mark.parametrize("name", ["topology.yaml", ".", "migrations", "migrations/0001_a.sql"])
@pytest.mark.parametrize("bits", [0o002, 0o020])
def test_a_file_that_others_may_write_is_not_obeyed(topology: Path, name: str, bits: int) -> None:
    (topology.parent / "migrations/0001_a.sql").touch()
    place = topology.parent / name
    place.chmod(stat.S_IMODE(place.stat().st_mode) | bits)
    if bits == 0o020:
        loader.load_trusted(topology)  # the user's private group
        if not ROOT:
            return
        os.chown(place, -1, pwd.getpwnam(OTHER).pw_gid)
    with raises_code("input_untrusted"):
        loader.load_trusted(topology)


def test_a_file_of_ones_own_in_a_sticky_directory_is_obeyed(topology: Path) -> None:
    """As in /tmp: others may not replace what is one's own there."""
    topology.parent.chmod(0o1777)
    assert loader.load_trusted(topology).cluster == "photos"


@needs_root
def test_a_link_of_another_user_is_not_obeyed(topology: Path, tmp_path: Path) -> None:
    """It would give relative paths another meaning."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    link = folder / "topology.yaml"
    link.symlink_to(topology)
    loader.load_trusted(link)
    os.lchown(link, pwd.getpwnam(OTHER).pw_uid, -1)
    with raises_code("input_untrusted", match=str(link)):
        loader.load_trusted(link)


@needs_root
def test_who_called_sudo_is_trusted(topology: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (topology.parent, topology, topology.parent / "migrations"):
        give(path)
    with raises_code("input_untrusted"):
        loader.load_trusted(topology)
    monkeypatch.setenv("SUDO_UID", str(pwd.getpwnam(OTHER).pw_uid))
    assert loader.load_trusted(topology).cluster == "photos"
    monkeypatch.setenv("SUDO_UID", "12345")
    with raises_code("input_untrusted"):
        loader.load_trusted(topology)


def test_a_group_of_the_owners_own_name_is_the_owners() -> None:
    assert not inputs.others_may_write(0o775, "ann", "ann")
    assert inputs.others_may_write(0o775, "ann", "users")
    assert inputs.others_may_write(0o757, "ann", "ann")


def test_others_may_not_write_what_a_command_makes(tmp_path: Path) -> None:
    """Whatever the umask: as root in containers it is often 000."""
    code = (
        "import os, sys; os.umask(0); os.chdir(sys.argv[1]);"
        "from shardctl.cli.app import main;"
        "main(['sandbox', 'new', '--shards', '2', '--nodes', '1'])"
    )
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=os.environ | state)
    shardctl("--topology", tmp_path / "topology.yaml", "topology", "check", **state)
    made = [path for path in tmp_path.rglob("*") if not path.is_symlink()]
    assert {path.name for path in made} >= {"topology.yaml", "state", "shardctl"}
    assert [path for path in made if path.stat().st_mode & 0o022] == []


@needs_root
def test_the_log_is_not_where_another_user_leads(topology: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    victim = tmp_path / "victim"
    victim.mkdir()
    (home / ".local" / "state").mkdir(parents=True)
    (home / ".local/state/shardctl").symlink_to(victim)
    for path in (home, home / ".local", home / ".local/state"):
        give(path)
    root = tmp_path / "root"
    done = shardctl(
        "--topology", topology, "topology", "check", XDG_STATE_HOME=str(home / ".local/state")
    )
    assert done.stderr
    assert done.returncode == 0
    assert list(victim.iterdir()) == []
    code = (
        "import pwd; entry = pwd.getpwuid(0);"
        f"pwd.getpwuid = lambda uid: pwd.struct_passwd((*entry[:5], {str(root)!r}, entry[6]));"
        "from shardctl.cli import log; print(log.log_file())"
    )
    env = {name: value for name, value in os.environ.items() if name != "XDG_STATE_HOME"}
    found = subprocess.check_output([sys.executable, "-c", code], env=env | {"HOME": str(home)})
    assert Path(found.decode().strip()).is_relative_to(root)


def test_a_link_is_not_the_log(topology: Path, tmp_path: Path) -> None:
    state, victim = tmp_path / "state", tmp_path / "victim"
    first = shardctl("--topology", topology, "topology", "check", XDG_STATE_HOME=str(state))
    assert first.stderr == ""
    [log] = (state / "shardctl").iterdir()
    log.rename(victim)
    before = victim.read_text()
    log.symlink_to(victim)
    done = shardctl("--topology", topology, "topology", "check", XDG_STATE_HOME=str(state))
    assert done.stderr
    assert victim.read_text() == before
