"""The shell script around a command on another machine: what the SSH protocol leaves out."""

from __future__ import annotations

import base64
import re
import secrets
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# All in one brace: what arrives cut off is a syntax error, and nothing of it runs. The input
# comes with the script, so that the channel's own input has one meaning: when it ends before the
# command does, no caller waits for the command any more, and its process group is killed. `$$` has
# been reaped by sshd when the channel ends because the command did.
#
# The mark parts what login shells print from what the command prints. The command is in the
# foreground, for a shell makes what it puts in the background deaf to SIGINT and SIGQUIT.
_SCRIPT = """{{
exec 3<&0 5>&2 2> /dev/null
read -r _ _ _ _ group _ < /proc/$$/stat
printf '%s %s\\n' {mark} "$group"
printf '%s\\n' {mark} >&5
{{ while read -r _; do :; done <&3; kill -0 $$ && kill -KILL 0; }} > /dev/null 5>&- &
{feed} 3<&- 5>&- | (
exec 2>&5 3<&- 5>&-
{settings}exec {command}
)
}}
"""
# What sudo leaves of the one who logged in, who may not even enter the directory.
_ANOTHER_USER = "cd /\nunset SUDO_COMMAND SUDO_USER SUDO_UID SUDO_GID SUDO_HOME MAIL\n"


def _new_mark() -> str:
    return f"shardctl-{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A command as it goes to a host: a line to execute there, and what that reads.

    Whatever is the command's own (arguments, environment, input) is in `script`, and so in no
    process list and in no log of the host; the arguments are in the command's own entry there.
    """

    argv: Sequence[str]
    sudo_to: str | None
    env: Mapping[str, str] = field(repr=False)
    input: str = field(repr=False)
    mark: str = field(default_factory=_new_mark)

    def script(self) -> bytes:
        """Write the script; raises ValueError for what no process can be given."""
        if any("\0" in word for word in (*self.argv, *self.env.values())):
            raise ValueError("embedded null byte")
        for name in self.env:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid name of an environment variable")
        exports = [f"export {name}={shlex.quote(value)}\n" for name, value in self.env.items()]
        coded = base64.b64encode(self.input.encode(errors="replace")).decode()
        text = _SCRIPT.format(
            mark=self.mark,
            feed=f"printf %s {coded} | base64 -d" if coded else ":",
            settings="".join([_ANOTHER_USER if self.sudo_to else "", *exports]),
            command=shlex.join(self.argv),
        )
        return text.encode(errors="surrogateescape")

    def line(self, size: int) -> str:
        """Write the line that executes a script of `size` bytes.

        Every login shell understands it, whatever the script holds.
        """
        shell = f"sh -c 'eval \"$(head -c {size})\"'"
        if self.sudo_to is None:
            return f"exec {shell}"
        return f"exec sudo -n -u {shlex.quote(self.sudo_to)} -H -- {shell}"
