"""POSIX shell scripts that ship with shardctl, in `scripts/`, and are run on a host."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardctl.hosts.host import Host

# `run` sends a script by standard input, since arguments are limited in length. Its length comes
# first, and what follows it is the part's own input; one that did not arrive whole is not begun.
_SHELL = """
script=$(head -c "$1")
[ "${#script}" -eq "$1" ] || { echo "the script arrived incomplete" >&2; exit 1; }
shift
eval "$script"
"""


@cache
def source(name: str) -> str:
    """Give `scripts/NAME.sh` with `common.sh` before it: ASCII that needs nothing of shardctl."""
    folder = resources.files("shardctl").joinpath("scripts")
    return "".join(folder.joinpath(f"{one}.sh").read_text("ascii") for one in ("common", name))


def argv(name: str, *words: str) -> list[str]:
    """Give the command that runs a short script with these words; its input is its own.

    Everybody on that host sees the script and the words, as `ps` shows them: no secret is in them.
    """
    return ["sh", "-c", source(name), name, *words]


def run(
    host: Host,
    name: str,
    part: str,
    *words: str,
    user: str | None = None,
    text: str = "",
    timeout: float | None = None,
) -> str:
    """Run one part of `scripts/NAME.sh` on `host`, and give what it prints.

    The script takes the part as its first argument, and ends by running it. `text`
    is the part's standard input, `timeout` in seconds.
    Raises CommandFailed, CommandTimedOut.
    """
    script = source(name).rstrip("\n")
    command = ["sh", "-c", _SHELL, name, str(len(script)), part, *words]
    return host.run(command, user=user, input=script + text, timeout=timeout).stdout
