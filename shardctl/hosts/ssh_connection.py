"""Opens SSH connections with fabric, as the user's own ssh would; imports fabric.

Only `ssh_links.py` imports this, when the first connection is opened: fabric takes its time.
"""

from __future__ import annotations

import logging
import re
import socket
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

import fabric  # type: ignore[import-untyped]  # neither brings types
import paramiko  # type: ignore[import-untyped]

from shardctl.hosts import known_hosts, ssh_config
from shardctl.hosts.host import HostUnreachable
from shardctl.hosts.known_hosts import HostKey, HostKeyUnknown
from shardctl.hosts.ssh_keys import Keys, KeysRefused

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.hosts.ssh_settings import SshSettings

KEEP_ALIVE = 15
"""Seconds of silence after which the host is sent something."""
_DEAD_AFTER_MS = 60_000
_HOP = re.compile(r"(?:ssh://)?(?:(.+)@)?(\[[^]]+\]|[^\[\]:]+)(?::(\d+))?/?")

# Without a handler Python writes a library's errors to the terminal; what matters of them is
# in the errors raised here.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Connection(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """Fabric's connection, where it would not do what ssh does."""

    proxy: subprocess.Popen[bytes] | None = None
    stderr: Any = None

    def derive_shorthand(self, host_string: str) -> dict[str, str | None]:
        """Take a name for a name: ports and users are given apart."""
        return {"user": None, "host": host_string, "port": None}

    def get_gateway(self) -> Connection | str | None:
        """Chain jump hosts in the order in which they are named; a ProxyCommand stays text."""
        named = self.ssh_config.get("proxyjump")
        if not named:
            command = self.ssh_config.get("proxycommand")
            return None if command is None else str(command)
        if named.lower() == "none":
            return None
        hop = None
        for text in named.split(","):
            found = _HOP.fullmatch(text.strip())
            if found is None:
                raise HostUnreachable(self.original_host, f"ProxyJump {text!r} names no host")
            user, host, port = found[1], found[2].strip("[]"), found[3]
            if host in (self.host, self.original_host):
                return None  # a ProxyJump for every host is for every other host
            config = self.config.clone()
            config.authentication.identities = []
            hop = Connection(host, user=user, port=port and int(port), config=config, gateway=hop)
            hop.forward_agent = False
        return hop

    def open_gateway(self) -> Any:
        """Start a ProxyCommand with a real socket: paramiko's spins when the command ends."""
        if not isinstance(self.gateway, str):
            return super().open_gateway()
        ours, theirs = socket.socketpair()
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the connection
        with theirs:
            self.proxy = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {self.gateway}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self.stderr,
                start_new_session=True,
            )
        return ours

    def hops(self) -> list[Connection]:
        """List the connections of the way, this one last."""
        before = self.gateway.hops() if isinstance(self.gateway, Connection) else []
        return [*before, self]

    def shut(self) -> None:
        """Close this connection, and what it goes through; nothing of them is left."""
        # Not `close`: that leaves alone what did not open whole.
        transport = self.client.get_transport()
        self.client.close()
        if transport is not None:
            transport.sock.close()
            if transport.is_alive():
                transport.join(KEEP_ALIVE)
        if self.proxy is not None:
            self.proxy.terminate()
            self.proxy.wait()
            self.stderr.close()
        if isinstance(self.gateway, Connection):
            self.gateway.shut()


class _HostKeys(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # paramiko has no types
    """Vouches for a host's key; paramiko itself knows no patterns, and no revoked keys."""

    def __init__(self, connection: Connection, *, accept_new: bool) -> None:
        self.host = connection.original_host
        self.options = connection.ssh_config
        self.accept_new = accept_new
        self.files = ssh_config.known_hosts(self.options)
        name = self.options.get("hostkeyalias")
        self.address = known_hosts.address(
            name or connection.host, known_hosts.SSH_PORT if name else connection.port
        )
        self.known = known_hosts.entries(self.files, self.address)
        if not self.known and not name:
            # As ssh does, a key known of the host counts for its other ports, if it is the same.
            self.known_elsewhere = known_hosts.entries(self.files, connection.host.lower())
        else:
            self.known_elsewhere = []

    def transport(self, sock: Any, **options: Any) -> paramiko.Transport:
        """Make the transport, which asks for a key of the kinds that are known first."""
        transport = paramiko.Transport(sock, **options)
        kinds = {entry.kind for entry in self.known or self.known_elsewhere if not entry.revoked}
        if "ssh-rsa" in kinds:
            kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
        security = transport.get_security_options()
        security.key_types = sorted(security.key_types, key=lambda kind: kind not in kinds)
        return transport

    def missing_host_key(self, client: object, hostname: str, key: Any) -> None:
        """Raise HostKeyUnknown or HostKeyChanged; paramiko asks, for it was given no key."""
        del client, hostname
        shown = HostKey(key.get_name(), key.asbytes(), key.fingerprint)
        known = self.known or [e for e in self.known_elsewhere if e.blob == shown.blob]
        try:
            known_hosts.vouch(self.host, self.address, shown, known, self.files)
        except HostKeyUnknown:
            if not self.accept_new or not self.files:
                raise
            self._add(self.files[0], shown)

    def _add(self, file: Path, key: HostKey) -> None:
        try:
            hashed = ssh_config.says_yes(self.options, "hashknownhosts")
            known_hosts.add(file, self.address, key, hashed=hashed)
        except OSError as error:
            raise HostUnreachable(
                self.host,
                f"its key is new and cannot be added to {file}: {error.strerror}",
                hint=f"make {file} writable",
            ) from error


def connect(settings: SshSettings) -> Connection:
    """Open a connection, with all that it goes through; raises HostUnreachable."""
    try:
        connection = _described(settings)
    except (paramiko.SSHException, OSError, KeyError, ValueError) as error:
        raise HostUnreachable(
            settings.host,
            f"invalid ssh configuration: {error}",
            hint=f"correct {ssh_config.USER_CONFIG} or {ssh_config.SYSTEM_CONFIG}",
        ) from error
    try:
        for hop in connection.hops():
            _open(hop, settings)
    except BaseException:
        connection.shut()
        raise
    return connection


def _described(settings: SshSettings) -> Connection:
    """Make the connection as settings and configuration have it; nothing is opened."""
    given = {"User": settings.user, "Port": settings.port}
    identities = [] if settings.key_file is None else [str(settings.key_file)]
    config = fabric.Config(
        ssh_config=ssh_config.load(settings.host, given),
        overrides={"authentication": {"strategy_class": Keys, "identities": identities}},
        lazy=True,  # fabric's own files and variables are none of ours
    )
    return Connection(
        settings.host,
        user=settings.user,
        port=settings.port,
        config=config,
        forward_agent=False,
    )


def _open(connection: Connection, settings: SshSettings) -> None:
    seconds = settings.connect_timeout
    policy = _HostKeys(connection, accept_new=settings.accept_new)
    connection.client.set_missing_host_key_policy(policy)
    connection.connect_timeout = None  # fabric would cut it to whole seconds
    names = ("timeout", "banner_timeout", "auth_timeout", "channel_timeout")
    connection.connect_kwargs = dict.fromkeys(names, seconds) | {
        "transport_factory": policy.transport
    }
    try:
        connection.open()
    except KeysRefused as error:
        raise HostUnreachable(connection.original_host, str(error), hint=error.hint) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise HostUnreachable(_named(connection, settings), _reason(connection, error)) from error
    connection.transport.set_keepalive(KEEP_ALIVE)
    if isinstance(connection.transport.sock, socket.socket):
        _tune(connection.transport.sock)


def _tune(sock: socket.socket) -> None:
    """Have the kernel send at once, and end what the other end no longer acknowledges."""
    if sock.family == socket.AF_UNIX:
        return
    # Of several small packets the second would wait for the first to be acknowledged: 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_AFTER_MS)


def _named(connection: Connection, settings: SshSettings) -> str:
    name = connection.original_host
    return name if name == settings.host else f"{name} (a jump host before {settings.host})"


def _reason(connection: Connection, error: Exception) -> str:
    """Explain why a connection did not come about, in one line."""
    if connection.stderr is not None:
        connection.stderr.seek(0)
        lines = connection.stderr.read().decode(errors="replace").strip().splitlines()
        if lines:
            return f"its ProxyCommand printed: {lines[-1]}"
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        error = next(iter(error.errors.values()))
    if isinstance(error, paramiko.ChannelException):
        return f"the jump host cannot reach it: {error.text}"
    # The last is paramiko's text when its own time for the beginning is over.
    slow = ("imeout", "banner", "No existing session")
    if isinstance(error, TimeoutError) or any(word in str(error) for word in slow):
        return "no SSH response in time"
    if isinstance(error, EOFError) or not str(error):
        return "it closed the connection"
    return getattr(error, "strerror", None) or str(error)
