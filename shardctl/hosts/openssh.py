"""How a host is reached, and by which keys it is known: what OpenSSH's own programs answer.

And the shell script around a command on another machine: what the SSH protocol leaves out.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import shlex
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardctl.hosts.host import CommandFailed, CommandTimedOut, HostUnreachable
from shardctl.hosts.local import Local
from shardctl.topology.model import Ssh

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SSH_PORT = 22

_SECONDS = 10.0
_NOT_INSTALLED = 127
# A connection of one's own, on which nobody is asked anything.
_ALONE = ("-o", "BatchMode=yes", "-o", "ControlPath=none", "-o", "ServerAliveInterval=15")
# Lines of an authority's keys are marked CA; they do not concern the host's own.
_FOUND = re.compile(
    r"^# Host \S+ found: line (\d+) ?(|REVOKED) ?\n(?:@revoked\s+)?\S+\s+(\S+)\s+(\S+)",
    re.MULTILINE,
)

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


SshSettings = Ssh


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a known_hosts file that speaks of a host."""

    file: Path
    line: int
    kind: str
    blob: bytes
    revoked: bool


class HostKeyUnknown(HostUnreachable):
    """A host whose key is in no known_hosts file."""

    def __init__(self, host: str, key: Any) -> None:
        super().__init__(
            host,
            f"unknown host key {key.get_name()} {key.fingerprint}",
            hint="compare it with the host's key (`ssh-keygen -lf` on the host), then accept it "
            f"in `ssh {host}`; or accept new host keys with `ssh: {{accept_new: true}}`",
        )


class HostKeyChanged(HostUnreachable):
    """A host that shows another key than it is known by, or one that was revoked."""

    def __init__(self, host: str, address: str, key: Any, entry: Entry) -> None:
        where = f"{entry.file}:{entry.line}"
        why = f"{where} revokes it" if entry.revoked else f"it differs from {where}"
        super().__init__(
            host,
            f"it presents the host key {key.get_name()} {key.fingerprint}, but {why}: the "
            "connection may be intercepted, or the host was reinstalled",
            hint="find out which; if the host was reinstalled, remove its old key with "
            f"`ssh-keygen -f {entry.file} -R '{address}'`, and add the new one",
        )


def options(settings: SshSettings) -> dict[str, list[str]]:
    """Give what `ssh -G` prints of a host: its options by name, each with its values.

    Raises HostUnreachable where its configuration is invalid, or OpenSSH's client not installed.
    """
    host, user, port = settings.host, settings.user, settings.port
    given = [*(["-l", user] if user else []), *(["-p", str(port)] if port else [])]
    try:
        printed = _ask(host, ["ssh", "-G", *given, "--", host])
    except (CommandFailed, CommandTimedOut) as error:
        said = error.completed.stderr if isinstance(error, CommandFailed) else error.message
        raise HostUnreachable(
            host,
            f"invalid ssh configuration: {'; '.join(said.strip().splitlines())}",
            hint="correct ~/.ssh/config or /etc/ssh/ssh_config",
        ) from error
    found = defaultdict(list)
    for line in printed.splitlines():
        name, _, value = line.partition(" ")
        found[name].append(value)
    return found


def way(settings: SshSettings, found: Mapping[str, Sequence[str]]) -> str | None:
    """Give the shell command through which a host is reached; None where it is reached directly.

    Jump hosts are gone through by ssh. The last has to be known as the host has to; what those
    before it need is in the user's own configuration.
    """
    if "proxycommand" in found:
        known = {"h": "hostname", "p": "port", "r": "user"}
        words = {"%": "%", "n": settings.host} | {
            short: found[name][0] for short, name in known.items()
        }
        return re.sub(
            r"%(.)", lambda token: words.get(token[1], token[0]), found["proxycommand"][0]
        )
    if "proxyjump" not in found:
        return None
    *before, last = found["proxyjump"][0].split(",")
    checking = "accept-new" if settings.accept_new else "yes"
    through = ["-J", ",".join(before)] if before else []
    argv = ["env", "SSH_ASKPASS_REQUIRE=never", "ssh", *_ALONE, *through]
    argv += ["-o", f"StrictHostKeyChecking={checking}"]
    target = f"[{found['hostname'][0]}]:{found['port'][0]}"
    return shlex.join([*argv, "-W", target, f"ssh://{last}"])


def known_hosts(found: Mapping[str, Sequence[str]]) -> list[Path]:
    """List the known_hosts files of a host, first the one to which ssh adds new keys."""
    names = [*found["userknownhostsfile"], *found["globalknownhostsfile"]]
    files = [name for line in names for name in line.split()]
    return [Path(name).expanduser() for name in files if name.lower() != "none"]


def learn(host: str, user: str, port: int, command: str | None) -> None:
    """Let ssh add the key of a host of which it knows none; `command` is the way there, if any."""
    argv = ["ssh", *_ALONE, "-o", "StrictHostKeyChecking=accept-new", "-N", "-l", user]
    argv += ["-o", "PreferredAuthentications=none", "-p", str(port)]
    argv += ["-o", f"ProxyCommand={command.replace('%', '%%')}"] if command else []
    # It is not let in; what else is wrong shows when shardctl connects.
    with suppress(CommandFailed, CommandTimedOut):
        Local().run([*argv, "--", host], timeout=_SECONDS)


def address(host: str, port: int) -> str:
    """Name a host as known_hosts files do.

    >>> address("DB1", 22), address("::1", 2222)
    ('db1', '[::1]:2222')
    """
    name = host.lower()
    return name if port == SSH_PORT else f"[{name}]:{port}"


def entries(files: Iterable[Path], address: str) -> list[Entry]:
    """List what the files know of a host, in their order; unreadable files count as empty.

    Raises HostUnreachable where OpenSSH's `ssh-keygen`, which reads them, is not installed.
    """
    found = []
    for file in files:
        try:
            printed = _ask(address, ["ssh-keygen", "-F", address, "-f", str(file)])
        except CommandFailed:  # the file is missing, or does not have the host
            continue
        for line, mark, kind, coded in _FOUND.findall(printed):
            with suppress(binascii.Error):
                blob = base64.b64decode(coded, validate=True)
                found.append(Entry(file, int(line), kind, blob, revoked=mark == "REVOKED"))
    return found


def _ask(host: str, argv: Sequence[str]) -> str:
    """Give what a program prints; raises CommandFailed, CommandTimedOut, HostUnreachable."""
    try:
        return Local().run(argv, timeout=_SECONDS).stdout
    except CommandFailed as error:
        if error.completed.code != _NOT_INSTALLED:
            raise
        raise HostUnreachable(
            host,
            f"{argv[0]} is not installed on this machine",
            hint="install the OpenSSH client",
        ) from error


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
    mark: str = field(default_factory=lambda: f"shardctl-{secrets.token_hex(8)}")

    def script(self) -> bytes:
        """Write the script; raises ValueError for what no process can be given."""
        if any("\0" in word for word in (*self.argv, *self.env.values())):
            raise ValueError("embedded null byte")
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
