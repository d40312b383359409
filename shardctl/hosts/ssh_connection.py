"""Opens SSH connections with fabric, as the user's own ssh would; imports fabric.

Only `ssh.py` imports this, when the first connection is opened: fabric takes its time.
"""

from __future__ import annotations

import base64
import binascii
import logging
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fabric  # type: ignore[import-untyped]  # neither brings types
import paramiko  # type: ignore[import-untyped]

from shardctl import inputs
from shardctl.errors import ShardctlError
from shardctl.hosts import openssh
from shardctl.hosts.host import TAIL, CommandTimedOut, HostUnreachable
from shardctl.hosts.openssh import HostKeyChanged, HostKeyUnknown, Wrapped
from shardctl.hosts.ssh_remote import BROKEN, KILLED_WITHIN, Remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.hosts.host import Completed
    from shardctl.hosts.openssh import SshSettings

KEEP_ALIVE = 15
"""Seconds of silence after which the host is sent something."""
SESSIONS = 10
"""Commands at once on a connection; what OpenSSH's server allows by default."""
DEAD_AFTER = 45.0
"""Seconds that a host has for a sign of life."""
_DEAD_AFTER_MS = 60_000
_REFUSED_FOR = 5.0
_POLL = 0.05
_MOST_BYTES = 1 << 20
_KILL = 'kill -s KILL -- "-$1"'  # the form that every shell knows

# Without a handler Python writes a library's errors to the terminal; what matters of them is
# in the errors raised here.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Connection(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """Fabric's connection, where it would not do what ssh does."""

    proxy: subprocess.Popen[bytes] | None = None
    stderr: Any = None

    def __init__(self, settings: SshSettings) -> None:
        found = openssh.options(settings)
        super().__init__(
            found["hostname"][0],
            user=found["user"][0],
            port=int(found["port"][0]),
            gateway=openssh.way(settings, found),
            # Fabric's own files and variables are none of ours, nor is its reading of ssh's.
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            forward_agent=False,
        )
        # Fabric takes an attribute that it does not know for a value of its configuration.
        self._set(settings=settings, options=found)
        self._set(
            policy=_HostKeys(self),
            _room=threading.Semaphore(SESSIONS),
            _running=set(),
        )

    def derive_shorthand(self, host_string: str) -> dict[str, str | None]:
        """Take a name for a name: ports and users are given apart."""
        return {"user": None, "host": host_string, "port": None}

    def open_gateway(self) -> Any:
        """Start a ProxyCommand with a real socket: paramiko's spins when the command ends."""
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

    @property
    def active(self) -> bool:
        """Whether it is open, as far as is known here."""
        return bool(self.transport.is_active())

    def carry_out(
        self,
        wrapped: Wrapped,
        timeout: float | None,
        begun: Callable[[str], None] | None = None,
    ) -> Completed:
        """Run a command to its end, as `Remote.carry_out`, when the host has room for it."""
        with self._session(timeout) as channel:
            remote = Remote(self, channel, wrapped, timeout, begun)
            try:
                return remote.carry_out()
            except CommandTimedOut:
                # It has ended and has left a process that holds its output.
                if remote.left is not None:
                    kill = ["sh", "-c", _KILL, "sh", remote.left]
                    with suppress(ShardctlError):
                        self.carry_out(Wrapped(kill, wrapped.sudo_to, {}, ""), KILLED_WITHIN)
                raise

    @contextmanager
    def _session(self, seconds: float | None) -> Iterator[Any]:
        """Open a channel for a command, and close it.

        Waits for other commands to end where the host allows no more, at most for `seconds`. Raises
        HostUnreachable where the host has no room for a command, or does not respond any more.
        """
        until = time.monotonic() + (threading.TIMEOUT_MAX if seconds is None else seconds)
        if not self._room.acquire(timeout=seconds):
            raise self._full()
        try:
            channel = self._when_allowed(until)
            self._running.add(channel)
            try:
                yield channel
            finally:
                channel.close()
                self._running.discard(channel)
        finally:
            self._room.release()

    def _when_allowed(self, until: float) -> Any:
        """Open a channel, again and again: the host may allow fewer, or not yet know of an end.

        Raises HostUnreachable where it allows none.
        """
        alone_until = time.monotonic() + _REFUSED_FOR
        while (channel := self._channel(self.settings.connect_timeout)) is None:
            now = time.monotonic()
            if self._running:
                alone_until = now + _REFUSED_FOR
            if now > (until if self._running else alone_until):
                raise self._full()
            time.sleep(_POLL)
        return channel

    def _full(self) -> HostUnreachable:
        return HostUnreachable(
            self.settings.host,
            f"the host allows no more commands ({len(self._running)} are running)",
            hint="check MaxSessions of the host's sshd, and the restrictions of the key there",
        )

    def ask_for_life(self) -> None:
        """Close it where the host gives no sign of life; the commands on it end as lost."""
        with suppress(HostUnreachable):
            if (channel := self._channel(DEAD_AFTER)) is not None:
                channel.close()

    def _channel(self, seconds: float) -> Any | None:
        """Open a channel; None where the host refuses.

        Closes what is dead, and raises HostUnreachable then: the next command opens another.
        """
        until = time.monotonic() + seconds
        try:
            return self.transport.open_session(timeout=seconds)
        except BROKEN as error:
            # Threads that are refused at once find each other's error: hence not by its type.
            if not self.active or time.monotonic() > until:
                self.shut()
                reason = "the connection broke, or the host stopped responding"
                raise HostUnreachable(self.settings.host, reason) from error
            return None

    def shut(self) -> None:
        """Close it, and what it goes through: nothing is left, and commands on it are lost."""
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


class _HostKeys(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # paramiko has no types
    """Vouches for a host's key; paramiko itself knows no patterns, and no revoked keys."""

    def __init__(self, connection: Connection) -> None:
        settings = connection.settings
        self.host = settings.host
        self.files = openssh.known_hosts(connection.options)
        alias = next(iter(connection.options.get("hostkeyalias", ())), None)
        self.address = openssh.address(
            alias or connection.host, openssh.SSH_PORT if alias else connection.port
        )
        self.known = openssh.entries(self.files, self.address)
        # As ssh does, a key known of the host counts for its other ports, if it is the same.
        name = "" if self.known or alias else connection.host.lower()
        self.elsewhere = openssh.entries(self.files, name) if name else []
        if settings.accept_new and all(entry.revoked for entry in self.known):
            jump = connection.gateway if "proxyjump" in connection.options else None
            openssh.learn(settings.host, connection.user, connection.port, jump)
            self.known = openssh.entries(self.files, self.address)

    def transport(self, sock: Any, **options: Any) -> paramiko.Transport:
        """Make the transport, which asks for a key of the kinds that are known first."""
        transport = paramiko.Transport(sock, **options)
        kinds = {entry.kind for entry in self.known or self.elsewhere if not entry.revoked}
        if "ssh-rsa" in kinds:
            kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
        security = transport.get_security_options()
        security.key_types = sorted(security.key_types, key=lambda kind: kind not in kinds)
        return transport

    def missing_host_key(self, client: object, hostname: str, key: Any) -> None:
        """Raise HostKeyUnknown or HostKeyChanged; paramiko asks, for it was given no key."""
        del client, hostname
        blob, kind = key.asbytes(), key.get_name()
        known = self.known or [entry for entry in self.elsewhere if entry.blob == blob]
        same = [entry for entry in known if entry.blob == blob]
        revoked = [entry for entry in same if entry.revoked]
        # A host known by keys of other kinds only is one that another session may stand in for.
        others = [entry for entry in known if not entry.revoked]
        others.sort(key=lambda entry: entry.kind != kind)
        if revoked or (others and not same):
            raise HostKeyChanged(self.host, self.address, key, (revoked or others)[0])
        if not same:
            raise HostKeyUnknown(self.host, key)


class _Keys:
    """Offers the key that was named, then as ssh: the agent's keys, then those in files.

    Paramiko's own asks for a password in the end, and offers an agent's keys in any order.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.tried: list[str] = []
        self.unusable: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Offer the keys one by one; raises HostUnreachable."""
        user = self.connection.user
        for name, key in self._offered():
            self.tried.append(name)
            try:
                if not transport.auth_publickey(user, key):
                    return
            except paramiko.SSHException:
                if not transport.is_active():
                    break  # the host has seen enough of them
        raise HostUnreachable(
            self.connection.settings.host,
            f"the host accepts no key for the user {user} "
            f"({', '.join(self.tried) or 'no keys to offer'}"
            f"{''.join(f'; {text}' for text in self.unusable)})",
            hint="add the public key to the user's authorized_keys on the host, or set the "
            "right key (`ssh: {user: ..., key_file: ...}`); add a key with a "
            "passphrase to an agent (`ssh-add`)",
        )

    def _offered(self) -> Iterator[tuple[str, paramiko.PKey]]:
        """Give what to offer, each loaded when its turn comes."""
        options, named = self.connection.options, self.connection.settings.key_file
        files = [Path(name).expanduser() for name in options["identityfile"]]
        if named is not None:
            yield from self._from_file(named)
        public = {path: _public(path) for path in (*([named] if named else ()), *files)}
        wanted = {blob for blob in public.values() if blob is not None}
        agent = paramiko.Agent()
        try:
            held = sorted(agent.get_keys(), key=lambda key: key.asbytes() not in wanted)
            if options["identitiesonly"] == ["yes"]:
                held = [key for key in held if key.asbytes() in wanted]
            for key in held:
                yield f"of the agent {key.fingerprint}", key
            offered = {key.asbytes() for key in held}
            for path in files:
                if path != named and public[path] not in offered and path.exists():
                    yield from self._from_file(path)
        finally:
            agent.close()

    def _from_file(self, path: Path) -> Iterator[tuple[str, paramiko.PKey]]:
        if path.suffix == ".pub":
            return
        try:
            inputs.read(path, _MOST_BYTES)  # a FIFO in its place would hold up paramiko
            key = paramiko.PKey.from_path(path)
        except OSError as error:
            self.unusable.append(f"{path}: {error.strerror}")
        # cryptography's words for a passphrase that is needed differ by the file's format.
        except (TypeError, ValueError, paramiko.SSHException, paramiko.UnknownKeyType) as error:
            locked = isinstance(error, TypeError | paramiko.PasswordRequiredException)
            self.unusable.append(f"{path}: {'has a passphrase' if locked else 'cannot be used'}")
        else:
            yield str(path), key


def _public(path: Path) -> bytes | None:
    """Read the public half of a key file; None where it does not lie beside."""
    public = path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")
    try:
        return base64.b64decode(inputs.read(public, _MOST_BYTES).split()[1])
    except (OSError, IndexError, binascii.Error):
        return None


def connect(settings: SshSettings) -> Connection:
    """Open a connection, with all that it goes through; raises HostUnreachable."""
    connection = Connection(settings)
    connection.client.set_missing_host_key_policy(connection.policy)
    names = ("timeout", "banner_timeout", "auth_timeout", "channel_timeout")
    connection.connect_kwargs = dict.fromkeys(names, settings.connect_timeout) | {
        "transport_factory": connection.policy.transport,
        "auth_strategy": _Keys(connection),
    }
    began = time.monotonic()
    try:
        connection.open()
    except BaseException as error:
        late = time.monotonic() - began >= settings.connect_timeout
        reason = _reason(connection, error, late=late) if isinstance(error, BROKEN) else None
        connection.shut()
        if reason is None:
            raise
        raise HostUnreachable(settings.host, reason) from error
    connection.transport.set_keepalive(KEEP_ALIVE)
    _tune(connection.transport.sock)
    return connection


def _tune(sock: socket.socket) -> None:
    """Have the kernel send at once, and end what the other end no longer acknowledges."""
    if sock.family == socket.AF_UNIX:
        return
    # Of several small packets the second would wait for the first to be acknowledged: 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_AFTER_MS)


def _reason(connection: Connection, error: Exception, *, late: bool) -> str:
    """Explain why a connection did not come about, in one line; `late` if its time was over."""
    if connection.stderr is not None:
        connection.stderr.seek(0)
        lines = connection.stderr.read().decode(errors="replace").strip().splitlines()
        if lines:
            name = "ProxyJump" if "proxyjump" in connection.options else "ProxyCommand"
            return f"its {name} printed: {'; '.join(map(str.strip, lines[-TAIL:]))}"
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        error = next(iter(error.errors.values()))
    if late or isinstance(error, TimeoutError):
        return "no SSH response in time"
    if isinstance(error, EOFError) or not str(error):
        return "it closed the connection"
    return getattr(error, "strerror", None) or str(error)
