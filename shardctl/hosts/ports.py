"""TCP ports of this machine: whether one is free, and who has it."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import re
import socket
from pathlib import Path
from typing import Any, Literal

from shardctl.errors import ShardctlError

_LISTEN = "0A"
_KNOCK_S = 5.0


class PortInUse(ShardctlError):
    """A port that something else listens on; `program` is None where /proc does not tell."""

    def __init__(self, host: str, port: int, program: str | None) -> None:
        super().__init__(
            f"port {port} of {host} is in use" + (f" by {program}" if program else ""),
            hint=f"stop {program or 'what listens there'}, or give the node another port",
        )
        self.host = host
        self.port = port
        self.program = program


def is_loopback(host: str) -> bool:
    """Tell whether `host` is a name or address of this machine's loopback.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "10.0.0.1", "db1")]
    [True, True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_here(host: str) -> bool:
    """Tell whether `host` is this machine: one of its addresses, or a socket's directory.

    >>> [is_here(host) for host in ("localhost", "/run/postgresql", "192.0.2.1")]
    [True, True, False]
    """
    if host.startswith("/") or is_loopback(host):
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return False
    return any(_leads_here(family, address) for family, _, _, _, address in found)


def _leads_here(family: int, address: tuple[Any, ...]) -> bool:
    """Ask the kernel from which address it would speak to this one; nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address[0], 9, *address[2:]))
        except OSError:
            return False
        return bool(probe.getsockname()[0] == address[0])


def knock(host: str, port: int) -> Literal["open", "closed", "silent"]:
    """Tell whether a program takes PostgreSQL's connections at an address; waits some seconds.

    `closed`: that machine says that none does. `silent`: nobody says anything, so a program may
    be there all the same.
    """
    if host.startswith("/"):
        found: list[tuple[Any, Any]] = [(socket.AF_UNIX, f"{host}/.s.PGSQL.{port}")]
    else:
        try:
            known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror:
            return "silent"
        found = [(family, address) for family, _, _, _, address in known]
    refused = 0
    for family, address in found:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(_KNOCK_S)
            try:
                probe.connect(address)
            except ConnectionRefusedError:
                refused += 1
            except OSError:
                continue
            else:
                return "open"
    return "closed" if refused == len(found) else "silent"


def claim_free(host: str, port: int) -> None:
    """Raise PortInUse when a server could not listen on `port` of `host` now.

    Other obstacles (a privileged port, an address that this machine lacks) are left to the
    server, whose log says them best.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        return
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise PortInUse(host, port, listener(port)) from error


def listener(port: int) -> str | None:
    """Name the program that listens on `port`, as `nginx (pid 71)`; None if unknown."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        if sockets & _held(process):
            with contextlib.suppress(OSError):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return None


def _held(process: Path) -> set[str]:
    """Read what a process has open; those that are closed meanwhile, or not ours, are left out."""
    held = set()
    with contextlib.suppress(OSError):
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                held.add(str(link.readlink()))
    return held


def _listening_inodes(port: int) -> list[str]:
    """List the sockets that listen on `port`, by /proc/net; empty where that is not there."""
    inodes = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = re.split(r"\s+", line.strip())
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.append(fields[9])
    return inodes
