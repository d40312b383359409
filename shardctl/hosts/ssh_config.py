"""A host's values in the user's and the system's ssh_config; imports paramiko.

Only `ssh_connection.py` imports this, when a connection is opened.
"""

from __future__ import annotations

import re
import shlex
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramiko import SSHConfig  # type: ignore[import-untyped]  # paramiko brings no types

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

USER_CONFIG = "~/.ssh/config"
SYSTEM_CONFIG = "/etc/ssh/ssh_config"
_DEEPEST = 16
_STATEMENT = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*)")
_USER_FILES = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_SYSTEM_FILES = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"


def load(host: str, given: Mapping[str, object]) -> Any:
    """Give the paramiko SSHConfig of both files; what is `given` of `host` goes before them."""
    config = SSHConfig()
    said = [f"{name} {value}\n" for name, value in given.items() if value is not None]
    config.parse(StringIO("".join([f"Host {shlex.quote(host)}\n", *said])))
    for file in (USER_CONFIG, SYSTEM_CONFIG):
        config.parse(StringIO("".join(_lines(Path(file).expanduser()))))
    return config


def known_hosts(options: Mapping[str, str]) -> list[Path]:
    """List the known_hosts files of a host, first the one to which new keys are added."""
    users = shlex.split(options.get("userknownhostsfile", _USER_FILES))
    systems = shlex.split(options.get("globalknownhostsfile", _SYSTEM_FILES))
    return [Path(name).expanduser() for name in (*users, *systems) if name.lower() != "none"]


def says_yes(options: Mapping[str, str], name: str) -> bool:
    """Return whether an option of a host is switched on."""
    return options.get(name, "no").lower() in ("yes", "true")


def _lines(file: Path, deep: int = 0) -> Iterator[str]:
    """Read a file, with those that it includes in their places, which paramiko leaves out.

    After an included file goes on what was before it: the same hosts. A file that cannot be
    read is left out, as ssh leaves out one that is missing.
    """
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return
    block = "Host *\n"
    for line in text.splitlines(keepends=True):
        statement = _STATEMENT.match(line)
        name = statement[1].lower() if statement else ""
        if statement and name == "include" and deep < _DEEPEST:
            for pattern in shlex.split(statement[2]):
                for included in _named(pattern, file):
                    yield from _lines(included, deep + 1)
                    yield f"\n{block}"
            continue
        if name in ("host", "match"):
            block = line if line.endswith("\n") else f"{line}\n"
        yield line
    yield "\n"


def _named(pattern: str, file: Path) -> list[Path]:
    path = Path(pattern).expanduser()
    if not path.is_absolute():
        home = Path(USER_CONFIG).expanduser().parent
        path = (Path(SYSTEM_CONFIG).parent if file.is_relative_to("/etc/ssh") else home) / path
    return sorted(Path("/").glob(str(path.relative_to("/"))))
