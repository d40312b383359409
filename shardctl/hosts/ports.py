"""Addresses: whether one is this machine's, who takes connections there, and from where."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any, Literal

_KNOCK_S = 5.0


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
    try:
        if host.startswith("/"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(_KNOCK_S)
                probe.connect(f"{host}/.s.PGSQL.{port}")
        else:
            socket.create_connection((host, port), _KNOCK_S, all_errors=True).close()
    except ExceptionGroup as errors:  # of a name's addresses
        return "silent" if errors.split(ConnectionRefusedError)[1] else "closed"
    except ConnectionRefusedError:
        return "closed"
    except OSError:
        return "silent"
    return "open"


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
