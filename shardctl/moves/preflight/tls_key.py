"""The clone's TLS key: whether its server accepts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.hosts import scripts
from shardctl.moves.preflight import target, tls
from shardctl.moves.preflight.tls import KEY
from shardctl.moves.refusals import TargetUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context

_SECONDS = 30.0
_OWN = "settings: {ssl_cert_file: ..., ssl_key_file: ...}"
_GROUP_MAY = 0o077
_ROOTS_GROUP_MAY = 0o037
"""Mode bits that PostgreSQL refuses: for a key of its own user, and for one of root."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key's owner and mode, never its content."""

    path: str
    mode: int
    owner: int
    user: int
    """The uid of the user who runs the server."""
    encrypted: bool = False
    fits: bool | None = None
    """Whether it matches the certificate; None without openssl or without a certificate."""


def look(context: Context) -> Key | None:
    """Look at a key that is not copied with the data; None where there is none, or no stat.

    Raises what `Host.run` raises.
    """
    found, machine = context.need(tls.look), context.need(target.look)
    if found.key is None:
        return None
    argv = scripts.argv("key", found.key)
    said = machine.host.run(argv, user=machine.account, input=found.pem or "", timeout=_SECONDS)
    return read(found.key, said.stdout)


def read(path: str, said: str) -> Key | None:
    r"""Read what the script prints.

    >>> key = read("k", "0 640 26\nencrypted \nfits yes\n")
    >>> (key.owner, oct(key.mode), key.user, key.encrypted, key.fits)
    (0, '0o640', 26, False, True)
    """
    first, encrypted, fits, *_ = [*said.splitlines(), "", "", ""]
    numbers = first.split()
    if len(numbers) != 3:  # owner, mode, user
        return None
    return Key(
        path,
        int(numbers[1], 8),
        int(numbers[0]),
        int(numbers[2]),
        encrypted.endswith("yes"),
        {"yes": True, "no": False}.get(fits.partition(" ")[2]),
    )


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a key with which the server would not start."""
    key, name = context.need(look), context.target.name
    if key is None:
        return
    if key.owner not in (0, key.user):
        yield TargetUnfit(
            name,
            "tls_key",
            f"{KEY}: {key.path} belongs neither to the user who runs its server nor to root: the "
            "clone would not start",
            hint=f"run `chown` on {key.path} there, to the user who runs the server",
        )
    elif key.mode & (_GROUP_MAY if key.owner == key.user else _ROOTS_GROUP_MAY):
        most = "0600" if key.owner == key.user else "0640"
        yield TargetUnfit(
            name,
            "tls_key",
            f"{KEY}: {key.path} has mode {key.mode:04o}, but PostgreSQL accepts at most {most}: "
            "the clone would not start",
            hint=f"run `chmod {most} {key.path}` there",
        )
    if key.encrypted and not context.need(tls.look_at_source).asks_passphrase(context.target):
        yield TargetUnfit(
            name,
            "tls_key",
            f"{KEY}: {key.path} has a passphrase, but the node has no ssl_passphrase_command: the "
            "clone would not start",
            hint="remove the passphrase, or give the node `settings: {ssl_passphrase_command: "
            "...}`",
        )
    if key.fits is False:
        yield TargetUnfit(
            name,
            "tls_key",
            f"{KEY}: {key.path} does not match its certificate: the clone would not start",
            hint=f"install the certificate's key there, or give the node other files with `{_OWN}`",
        )


def notes(context: Context) -> Iterator[str]:
    """Report that the key could not be checked, or not compared with the certificate."""
    found, key, name = context.need(tls.look), context.need(look), context.target.name
    if found.key is not None and key is None:
        yield f"node {name}: not checked: its TLS key: its host has no stat"
    elif key is not None and key.fits is None:
        yield f"node {name}: not checked: whether its TLS key matches its certificate"
