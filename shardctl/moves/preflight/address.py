"""The addresses on which the clone would listen: whether other machines can connect to them."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.hosts.host import CommandFailed
from shardctl.meter import listed
from shardctl.moves.preflight import target
from shardctl.moves.refusals import TargetUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context
    from shardctl.topology.model import Node

LISTEN = "listen_addresses"

_SECONDS = 30.0
_EVERYWHERE = ("*", "0.0.0.0", "::")  # noqa: S104  # to recognise, not to listen at
_UNKNOWN_NAME = 2  # getent's exit code for a name that does not resolve
_OWN = """
cat /proc/net/fib_trie || exit 1
cat /proc/net/if_inet6 2>/dev/null
echo ip_nonlocal_bind "$(cat /proc/sys/net/ipv4/ip_nonlocal_bind 2>/dev/null)"
"""
_IPV4 = re.compile(r"\|-- (\S+)\s+/32 host LOCAL")
_IPV6 = re.compile(r"^([0-9a-f]{32}) ", re.MULTILINE)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Listens:
    """Where the clone would listen, by its own host's names and addresses."""

    everywhere: bool = False
    resolved: frozenset[Address] = frozenset()
    """What the names in `listen_addresses` resolve to on the target's host."""
    bound: frozenset[Address] = frozenset()
    """Those on which a server on that host could listen."""
    is_far: bool = False
    """Whether other machines use the node's `host`, too, as far as this machine can see."""


def look(context: Context) -> Listens | None:
    """Resolve names on the target's host and here; None where that host lacks the tools."""
    host, node = context.need(target.look).host, context.target
    names = _listen(node)
    if any(name in _EVERYWHERE for name in names):
        return Listens(everywhere=True)
    resolved: set[Address] = set()
    try:
        own, any_other = addresses_of(host.run(["sh", "-c", _OWN], timeout=_SECONDS).stdout)
        for name in names:
            try:
                said = host.run(["getent", "ahosts", name], timeout=_SECONDS).stdout
            except CommandFailed as error:
                if error.completed.code != _UNKNOWN_NAME:
                    raise
            else:
                resolved |= {_address(line.split()[0]) for line in said.splitlines()}
    except CommandFailed:  # no getent or no /proc: `notes` reports it
        return None
    bound = frozenset(a for a in resolved if any_other or a.is_loopback or a in own)
    poolers = context.topology.poolers.values()
    return Listens(
        resolved=frozenset(resolved),
        bound=bound,
        is_far=_is_far(node.host, any(pooler.ssh is not None for pooler in poolers)),
    )


def addresses_of(said: str) -> tuple[frozenset[Address], bool]:
    r"""Read from /proc a host's addresses but 127.0.0.0/8, and whether it may take others.

    >>> trie = "    |-- 10.0.0.2\n      /32 host LOCAL\n    |-- 10.0.0.255\n  /32 link BROADCAST\n"
    >>> own, others = addresses_of(trie + "00000000000000000000000000000001 01 80 10 80 lo\n")
    >>> sorted(map(str, own)), others, addresses_of("ip_nonlocal_bind 1\n")[1]
    (['10.0.0.2', '::1'], False, True)
    """
    own: set[Address] = {ipaddress.IPv4Address(one) for one in _IPV4.findall(said)}
    own |= {ipaddress.IPv6Address(int(one, 16)) for one in _IPV6.findall(said)}
    return frozenset(own), "ip_nonlocal_bind 1" in said


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a server that would listen nowhere, or only where no other machine can connect."""
    node, listens = context.target, context.need(look)
    if listens is None or listens.everywhere:
        return
    said, names = listed(sorted(map(str, listens.resolved))), ", ".join(_listen(node))
    if not listens.bound:
        what = f"its host has no address {said}" if said else "its host cannot resolve it"
        yield TargetUnfit(
            node.name,
            "listen_addresses",
            f"its server would listen on {names}, but {what}: the clone would not start",
            hint=f"give the node `settings: {{{LISTEN}: '*'}}`, or addresses of its host",
        )
    elif listens.is_far and all(one.is_loopback for one in listens.bound):
        yield TargetUnfit(
            node.name,
            "listen_addresses",
            f"its server would listen on {names}, which resolves to {said} there: no other "
            "machine could connect",
            hint="remove the name from that line of /etc/hosts there, or give the node "
            f"`settings: {{{LISTEN}: '*'}}`",
        )


def notes(context: Context) -> Iterator[str]:
    """Report that the clone's addresses could not be checked."""
    if context.need(look) is None:
        yield f"node {context.target.name}: not checked: the addresses it would listen on"


def _listen(node: Node) -> list[str]:
    """List the clone's `listen_addresses`: the node's host, unless its settings name others."""
    given = {name.lower(): value for name, value in node.settings.items()}.get(LISTEN, node.host)
    return [name for one in given.split(",") if (name := one.strip().strip('"'))]


def _is_far(host: str, has_far_poolers: bool) -> bool:
    """Return whether a host name is more than a machine's name for itself."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:  # the login to that host reports it
        return False
    here = [_address(str(where[0])) for *_, where in found]
    if not any(one.is_loopback for one in here):
        return True
    # As Debian has it: 127.0.1.1 for its own name, whose other addresses poolers would take.
    return has_far_poolers and host != "localhost" and host not in map(str, here)


def _address(text: str) -> Address:
    return ipaddress.ip_address(text.partition("%")[0])
