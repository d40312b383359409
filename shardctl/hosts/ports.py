"""TCP ports: whether one is free here, who has it on a host, and from where one is reached."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import TYPE_CHECKING, Any, Literal

from shardctl.errors import ShardctlError
from shardctl.hosts import scripts
from shardctl.hosts.local import Local

if TYPE_CHECKING:
    from shardctl.hosts.host import Host

_KNOCK_S = 5.0
_LOOK_S = 30.0
_NAMELESS = "?"
"""What the script prints of a program whose name it may not see."""


class PortInUse(ShardctlError):
    """A port that something else listens on; `program` is None where /proc does not show it."""

    def __init__(self, host: str, port: int, program: str | None) -> None:
        super().__init__(
            f"port {port} of {host} is in use" + (f" by {program}" if program else ""),
            hint=f"stop {program or 'the program that listens there'}, or give the node "
            "another port",
        )
        self.port = port


def is_loopback(host: str) -> bool:
    """Return whether `host` is a name or address of this machine's loopback.

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
    """Return whether `host` is this machine: one of its addresses, or a socket's directory.

    >>> [is_here(host) for host in ("localhost", "/run/postgresql", "192.0.2.1")]
    [True, True, False]
    """
    if host.startswith("/") or is_loopback(host):
        return True
    return any(_source(family, address) == address[0] for family, address in _known(host))


def _source(family: int, address: tuple[Any, ...]) -> str | None:
    """Ask the kernel from which address it would speak to this one; nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address[0], 9, *address[2:]))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def knock(host: str, port: int) -> Literal["open", "closed", "silent"]:
    """Return whether a program takes PostgreSQL's connections at an address; waits some seconds.

    `closed`: that machine shows that none does. `silent`: no program reports anything, so a
    program may be there all the same.
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
    server, whose log has them.
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
                    raise _taken(host, port, _listening(port, Local())) from error


def in_use(host: str, port: int, machine: Host) -> PortInUse | None:
    """Report what keeps a server of a machine from its port; None where nothing does.

    Raises what `Host.run` raises of another machine.
    """
    if isinstance(machine, Local):
        try:
            claim_free(host, port)
        except PortInUse as error:
            return error
        return None
    found = _listening(port, machine)
    return _taken(host, port, found) if found else None


def _taken(host: str, port: int, program: str) -> PortInUse:
    return PortInUse(host, port, program if program not in ("", _NAMELESS) else None)


def _listening(port: int, host: Host) -> str:
    return host.run(scripts.argv("listener", f"{port:04X}"), timeout=_LOOK_S).stdout.strip()


def addresses(host: str) -> set[str]:
    """Give the addresses of a host; none for a socket's directory, or an unknown name."""
    return {str(address[0]) for _, address in _known(host)}


def sources(host: str) -> set[str]:
    """Give the addresses from which this machine speaks to those of `host`; nothing is sent."""
    asked = (_source(family, address) for family, address in _known(host))
    return {source for source in asked if source is not None}


def _known(host: str) -> list[tuple[int, tuple[Any, ...]]]:
    if host.startswith("/"):
        return []
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return []
    return [(int(family), address) for family, _, _, _, address in found]
