"""Which keys a host is known by: OpenSSH's known_hosts files, read as ssh reads them."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.hosts.host import HostUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SSH_PORT = 22


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
    """A host whose key nobody has vouched for."""

    def __init__(self, host: str, address: str, key: HostKey, files: Sequence[Path]) -> None:
        scan = f"-p {address.rpartition(']:')[2]} " if address.startswith("[") else ""
        name = address.rpartition("]:")[0].lstrip("[") or address
        super().__init__(
            host,
            f"its key {key.kind} {key.fingerprint} is not known",
            hint=f"compare it with the host's own (`ssh-keygen -lf` on it), then add it with"
            f" `ssh-keyscan {scan}{name} >> {_first(files)}`; or let shardctl accept the keys of"
            " new hosts with `ssh: {accept_new: true}`",
        )
        self.address = address
        self.key = key


class HostKeyChanged(HostUnreachable):
    """A host that shows another key than it is known by, or one that was revoked."""

    def __init__(self, host: str, address: str, key: HostKey, entry: Entry) -> None:
        where = f"{entry.file}:{entry.line}"
        why = f"which {where} revokes" if entry.revoked else f"not the one in {where}"
        super().__init__(
            host,
            f"it shows the key {key.kind} {key.fingerprint}, {why};"
            " somebody may be in between, or the host was set up anew",
            hint="find out which. If the host was set up anew, forget its old key with"
            f" `ssh-keygen -f {entry.file} -R '{address}'`, and add the new one",
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
    """List what the files know of a host, in their order; what cannot be read says nothing."""
    found = []
    for file in files:
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for number, line in enumerate(lines, 1):
            entry = _entry(file, number, line, address)
            if entry is not None:
                found.append(entry)
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
    # A host known by keys of other kinds only is one that somebody else may stand in for.
    of_its_kind = [entry for entry in others if entry.kind == key.kind]
    raise HostKeyChanged(host, address, key, (of_its_kind or others)[0])


def add(file: Path, address: str, key: HostKey, *, hashed: bool) -> None:
    """Write down a host's key, after what is there; raises OSError."""
    name = _hash(address, os.urandom(20)) if hashed else address
    text = f"{name} {key.kind} {base64.b64encode(key.blob).decode()}\n"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # In one write, for other threads and other programs write here too.
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "rb+") as opened:
        end = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, end - 1))
        separator = "" if opened.read() in (b"", b"\n") else "\n"
        opened.write(f"{separator}{text}".encode())


def _entry(file: Path, number: int, line: str, address: str) -> Entry | None:
    """Read a line; None when it does not speak of the host, or of an authority's keys."""
    words = line.split()
    mark = words.pop(0) if words and words[0].startswith("@") else None
    if len(words) < 3 or words[0].startswith("#") or mark not in (None, "@revoked"):
        return None
    names, kind, coded = words[:3]
    if not _speaks_of(names, address):
        return None
    try:
        blob = base64.b64decode(coded, validate=True)
    except binascii.Error:
        return None
    return Entry(file, number, kind, blob, revoked=mark is not None)


def _speaks_of(names: str, address: str) -> bool:
    r"""Tell whether a line's names, patterns or hash, mean the host.

    >>> _speaks_of("*.example.com,!db2.example.com", "db1.example.com")
    True
    >>> _speaks_of("*.example.com,!db2.example.com", "db2.example.com")
    False
    >>> _speaks_of("[10.0.0.?]:2222", "[10.0.0.7]:2222")
    True
    """
    if names.startswith("|1|"):
        try:
            salt = base64.b64decode(names.split("|")[2])
        except (binascii.Error, IndexError):
            return False
        return hmac.compare_digest(names, _hash(address, salt))
    patterns = names.lower().split(",")
    if any(_matches(pattern[1:], address) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(_matches(pattern, address) for pattern in patterns)


def _matches(pattern: str, address: str) -> bool:
    # Of fnmatch's signs these files know `*` and `?` only: brackets are part of an address.
    return re.match(fnmatch.translate(pattern.replace("[", "[[]")), address) is not None


def _hash(address: str, salt: bytes) -> str:
    digest = hmac.digest(salt, address.encode(), hashlib.sha1)
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _first(files: Sequence[Path]) -> Path:
    return files[0] if files else Path("~/.ssh/known_hosts")
