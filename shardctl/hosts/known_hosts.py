"""Which keys a host is known by: OpenSSH's known_hosts files, read by its own ssh-keygen."""

from __future__ import annotations

import base64
import binascii
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paramiko import HostKeys  # type: ignore[import-untyped]  # paramiko brings no types

from shardctl.hosts.host import CommandFailed, HostUnreachable
from shardctl.hosts.local import Local

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SSH_PORT = 22

_SECONDS = 10.0
_NOT_INSTALLED = 127
# Lines of an authority's keys are marked CA; they do not concern the host's own.
_FOUND = re.compile(
    r"^# Host \S+ found: line (\d+) ?(|REVOKED) ?\n(?:@revoked\s+)?\S+\s+(\S+)\s+(\S+)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class HostKey:
    """The key that a host shows."""

    kind: str
    """As files name it, such as `ssh-ed25519`."""
    blob: bytes
    fingerprint: str


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

    def __init__(self, host: str, address: str, key: HostKey, files: Sequence[Path]) -> None:
        scan = f"-p {address.rpartition(']:')[2]} " if address.startswith("[") else ""
        name = address.rpartition("]:")[0].lstrip("[") or address
        super().__init__(
            host,
            f"unknown host key {key.kind} {key.fingerprint}",
            hint="compare it with the host's key (`ssh-keygen -lf` on the host), then add "
            f"it with `ssh-keyscan {scan}{name} >> {_first(files)}`; or accept new "
            "host keys with `ssh: {accept_new: true}`",
        )
        self.address = address
        self.key = key


class HostKeyChanged(HostUnreachable):
    """A host that shows another key than it is known by, or one that was revoked."""

    def __init__(self, host: str, address: str, key: HostKey, entry: Entry) -> None:
        where = f"{entry.file}:{entry.line}"
        why = f"{where} revokes it" if entry.revoked else f"it differs from {where}"
        super().__init__(
            host,
            f"it presents the host key {key.kind} {key.fingerprint}, but {why}: the "
            "connection may be intercepted, or the host was reinstalled",
            hint="find out which; if the host was reinstalled, remove its old key with "
            f"`ssh-keygen -f {entry.file} -R '{address}'`, and add the new one",
        )
        self.address = address
        self.key = key
        self.entry = entry


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
            output = Local().run(["ssh-keygen", "-F", address, "-f", str(file)], timeout=_SECONDS)
        except CommandFailed as error:  # the file is missing, or does not have the host
            if error.completed.code != _NOT_INSTALLED:
                continue
            raise HostUnreachable(
                address,
                "ssh-keygen is not installed on this machine",
                hint="install the OpenSSH client",
            ) from error
        for line, mark, kind, coded in _FOUND.findall(output.stdout):
            with suppress(binascii.Error):
                blob = base64.b64decode(coded, validate=True)
                found.append(Entry(file, int(line), kind, blob, revoked=mark == "REVOKED"))
    return found


def vouch(
    host: str, address: str, key: HostKey, known: Sequence[Entry], files: Sequence[Path]
) -> None:
    """Compare the key that a host shows with what is known of it.

    Raises HostKeyChanged, and HostKeyUnknown where nothing is known.
    """
    same = [entry for entry in known if entry.blob == key.blob]
    for entry in same:
        if entry.revoked:
            raise HostKeyChanged(host, address, key, entry)
    others = [entry for entry in known if not entry.revoked]
    if same:
        return
    if not others:
        raise HostKeyUnknown(host, address, key, files)
    # A host known by keys of other kinds only is one that another session may stand in for.
    of_its_kind = [entry for entry in others if entry.kind == key.kind]
    raise HostKeyChanged(host, address, key, (of_its_kind or others)[0])


def add(file: Path, address: str, key: HostKey, *, hashed: bool) -> None:
    """Append a host's key to the file; raises OSError."""
    name = HostKeys.hash_host(address) if hashed else address
    text = f"{name} {key.kind} {base64.b64encode(key.blob).decode()}\n"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # In one write, for other threads and other programs write here too.
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "rb+") as opened:
        end = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, end - 1))
        separator = "" if opened.read() in (b"", b"\n") else "\n"
        opened.write(f"{separator}{text}".encode())


def _first(files: Sequence[Path]) -> Path:
    return files[0] if files else Path("~/.ssh/known_hosts")
