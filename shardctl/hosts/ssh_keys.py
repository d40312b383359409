"""Which keys are offered to a host, and in which order; imports paramiko.

Only `ssh_connection.py` imports this, when a connection is opened.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paramiko  # type: ignore[import-untyped]  # paramiko brings no types
from paramiko.auth_strategy import (  # type: ignore[import-untyped]  # same
    AuthStrategy,
    InMemoryPrivateKey,
)

from shardctl import inputs
from shardctl.hosts import ssh_config

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULTS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
_MOST_BYTES = 1 << 20


class KeysRefused(paramiko.SSHException):  # type: ignore[misc]  # paramiko has no types
    """A host that accepts none of the keys; `hint` is what to do."""

    def __init__(self, user: str, tried: list[str], unusable: list[str]) -> None:
        offered = ", ".join(tried) or "no keys to offer"
        left_out = "".join(f"; {text}" for text in unusable)
        super().__init__(f"the host accepts no key for the user {user} ({offered}{left_out})")
        self.hint = (
            "add the public key to the user's authorized_keys on the host, or set the "
            "right key (`ssh: {user: ..., key_file: ...}`); add a key with a "
            "passphrase to an agent (`ssh-add`)"
        )


class Keys(AuthStrategy):  # type: ignore[misc]  # paramiko has no types
    """Offers the key that was named, then as ssh: the agent's keys, then those in files.

    Fabric's own asks for a password in the end, and stops at a file that it cannot read.
    """

    def __init__(self, ssh_config: Any, fabric_config: Any, username: str) -> None:
        super().__init__(ssh_config=ssh_config)
        self.username = username
        self.named = [Path(path) for path in fabric_config.authentication.identities]
        self.tried: list[str] = []
        self.unusable: list[str] = []

    def authenticate(self, transport: Any) -> Any:
        """Offer the keys one by one; raises KeysRefused."""
        try:
            return super().authenticate(transport)
        except paramiko.AuthenticationException as error:
            raise KeysRefused(self.username, self.tried, self.unusable) from error

    def get_sources(self) -> Iterator[InMemoryPrivateKey]:
        """Give what to offer, each loaded when its turn comes."""
        for path in self.named:
            yield from self._from_file(path, report_missing=True)
        in_config = [Path(path) for path in self.ssh_config.get("identityfile", [])]
        files = in_config or [Path(path).expanduser() for path in DEFAULTS]
        only = ssh_config.says_yes(self.ssh_config, "identitiesonly")
        agent = paramiko.Agent()
        try:
            offered = set()
            wanted = {blob for path in (*self.named, *files) if (blob := _public(path))}
            held = sorted(agent.get_keys(), key=lambda key: key.asbytes() not in wanted)
            for key in held:
                if key.asbytes() in wanted or not only:
                    offered.add(key.asbytes())
                    self.tried.append(f"of the agent {key.fingerprint}")
                    yield InMemoryPrivateKey(self.username, key)
            for path in files:
                if path not in self.named and _public(path) not in offered:
                    yield from self._from_file(path)
        finally:
            agent.close()

    def _from_file(
        self, path: Path, *, report_missing: bool = False
    ) -> Iterator[InMemoryPrivateKey]:
        if path.suffix == ".pub" or not (report_missing or path.exists()):
            return
        try:
            inputs.read(path, _MOST_BYTES)  # a FIFO in its place would hold up paramiko
            key = paramiko.PKey.from_path(path)
        except OSError as error:
            self.unusable.append(f"{path}: {error.strerror}")
        # cryptography's words for a passphrase that is needed differ by the file's format.
        except (TypeError, ValueError, paramiko.SSHException) as error:
            locked = isinstance(error, TypeError | paramiko.PasswordRequiredException)
            self.unusable.append(f"{path}: {'has a passphrase' if locked else 'cannot be used'}")
        except paramiko.UnknownKeyType:
            self.unusable.append(f"{path}: this kind of key is not supported")
        else:
            self.tried.append(str(path))
            yield InMemoryPrivateKey(self.username, key)


def _public(path: Path) -> bytes | None:
    """Read the public half of a key file; None where it does not lie beside."""
    public = path if path.suffix == ".pub" else path.with_name(f"{path.name}.pub")
    try:
        return base64.b64decode(inputs.read(public, _MOST_BYTES).split()[1])
    except (OSError, IndexError, binascii.Error):
        return None
