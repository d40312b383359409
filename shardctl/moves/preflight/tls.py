"""TLS: the files that the clone would use, the names in its certificate, and its key."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from shardctl.hosts import files, scripts
from shardctl.moves.preflight import poolers, rights, target
from shardctl.moves.preflight.subject import QUERIES, Unknown
from shardctl.moves.refusals import TargetUnfit
from shardctl.postgres import certificates, queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.certificates import Certificate
    from shardctl.topology.model import Node


CERTIFICATE, KEY = "ssl_cert_file", "ssl_key_file"
PASSPHRASE = "ssl_passphrase_command"  # noqa: S105  # a parameter's name
FILES = (CERTIFICATE, KEY, "ssl_ca_file", "ssl_crl_file", "ssl_dh_params_file")
"""Parameters that name the files a server reads when it starts with `ssl = on`."""

_SECONDS = 30.0
_CONTENT = "SELECT pg_read_binary_file(%(path)s)"
_SYSTEM = "system"  # of sslrootcert: the system's own authorities
_DEMANDING = ("require", "verify-ca", "verify-full")
_READABLE = 'for one; do if [ -f "$one" ] && [ -r "$one" ]; then echo yes; else echo no; fi; done'
_OWN = "settings: {ssl_cert_file: ..., ssl_key_file: ...}"


@dataclass(frozen=True, slots=True)
class OfSource:
    """The source's TLS parameters, and its TLS files that the clone copies."""

    settings: Mapping[str, str]
    given: frozenset[str]
    """Parameters that are not at their defaults."""
    copied: Mapping[str, bool] = field(default_factory=dict)
    """Files in the data directory, by their relative paths, and whether they exist."""
    certificate: bytes | None = None
    """The copied certificate, if the clone would use it."""
    sslmode: str = "prefer"
    """How this shardctl logs in to nodes."""
    authorities: bytes | None = None
    """The authorities that shardctl trusts; None where they are not in a file."""

    def asks_passphrase(self, node: Node) -> bool:
        """Return whether the clone would run a command for its key's passphrase."""
        return bool({**self.settings, **_given(node)}.get(PASSPHRASE))


@dataclass(frozen=True, slots=True)
class Tls:
    """The clone's TLS, as far as its host reports it."""

    on: bool = False
    missing: tuple[tuple[str, str], ...] = ()
    """Parameters and files that its server could not read."""
    unknown: tuple[str, ...] = ()
    """Parameters that another postgresql.conf may set."""
    certificate: Certificate | None = None
    broken: str | None = None
    """Why the file is not a certificate."""
    copied: bool = False
    """Whether the certificate is the source's."""
    key: str | None = None
    """The path of the key, where it is already on the target's host."""
    pem: str | None = None
    """The certificate that the key must match."""


def look_at_source(context: Context) -> OfSource:
    """Read the source's parameters, and the files that the clone would copy.

    Raises Unknown where the role may not read them.
    """
    if context.need(rights.look):
        raise Unknown
    node, session = context.target, context.session
    found = session.execute(QUERIES["settings"], {"names": ["ssl", PASSPHRASE, *FILES]}).fetchall()
    settings = {name: value for name, value, _ in found}
    wanted = {**settings, **_given(node)}
    copied: dict[str, bool] = {}
    certificate = None
    for name in FILES:
        inside = _inside(node, wanted.get(name, ""))
        if inside is None or not _is_on(wanted):
            continue
        (is_file,) = queries.one(session, QUERIES["copied_file"], {"path": inside})
        copied[inside] = bool(is_file)
        if name == CERTIFICATE and is_file:
            (content,) = queries.one(session, _CONTENT, {"path": inside})
            certificate = bytes(content)
    said = {one.keyword.decode(): (one.val or b"").decode() for one in session.pgconn.info}
    return OfSource(
        settings,
        frozenset(name for name, _, given in found if given),
        copied,
        certificate,
        said.get("sslmode") or "prefer",
        _authorities(said.get("sslrootcert", "")),
    )


def look(context: Context) -> Tls:
    """Check the files on the target's host that are not copied."""
    node, source, machine = context.target, context.need(look_at_source), context.need(target.look)
    host, account = machine.host, machine.account
    wanted = {**source.settings, **_given(node)}
    if not _is_on(wanted):
        return Tls()
    # A configuration file of the host may set what the source leaves at its default.
    free = set(wanted) - source.given - set(_given(node))
    unknown = tuple(
        n for n in (CERTIFICATE, KEY) if n in free and node.control and node.control.start
    )
    named = [(name, wanted[name]) for name in FILES if wanted.get(name) and name not in unknown]
    inside = {name: _inside(node, path) for name, path in named}
    outside = [(name, path) for name, path in named if inside[name] is None]
    argv = ["sh", "-c", _READABLE, "sh", *(path for _, path in outside)]
    there = host.run(argv, user=account, timeout=_SECONDS).stdout.split() if outside else []
    missing = [one for one, said in zip(outside, there, strict=True) if said != "yes"]
    missing += [(n, p) for n, p in named if (i := inside[n]) is not None and not source.copied[i]]
    pem, copied = source.certificate, inside.get(CERTIFICATE) is not None
    if CERTIFICATE in dict(outside) and CERTIFICATE not in dict(missing):
        text = files.read(host, Path(wanted[CERTIFICATE]), user=account)
        pem = text.encode() if text is not None else None
    key = None if KEY in dict(missing) else dict(outside).get(KEY)
    seen = Tls(on=True, missing=tuple(missing), unknown=unknown, key=key)
    if CERTIFICATE in unknown or pem is None:
        return seen
    seen = replace(seen, pem=pem.decode("ascii", "replace"))
    try:
        certificate = certificates.read(pem, source.authorities)
    except ValueError as error:
        return replace(seen, broken=str(error))
    return replace(seen, certificate=certificate, copied=copied)


def judge(context: Context) -> Iterator[ShardctlError]:
    """Refuse TLS with which the clone would not start, or its clients would not trust it."""
    node, tls, source = context.target, context.need(look), context.need(look_at_source)
    if not tls.on:
        if _is_on(source.settings) and source.sslmode in _DEMANDING:
            yield TargetUnfit(
                node.name,
                "tls_off",
                f"settings: ssl is off, but shardctl connects with sslmode={source.sslmode}",
                hint="remove it: the clone then has the source's value",
            )
        return
    for name, path in tls.missing:
        yield TargetUnfit(
            node.name,
            "tls_files",
            f"{name} is {path}, which its server cannot read: the clone would not start",
            hint="install the file there, readable for the user who runs the server, or give the "
            f"node files of its own with `{_OWN}`",
        )
    if tls.broken is not None:
        yield TargetUnfit(
            node.name,
            "tls_files",
            f"{CERTIFICATE} has no certificate: {tls.broken}",
            hint=f"replace it, or give the node another file with `{_OWN}`",
        )
    asking = [("shardctl", source.sslmode, node.host)]
    asking += [
        (f"pooler {one.pooler.name}", one.config.get("server_tls_sslmode", ""), node.pooler_host)
        for one in context.of(poolers.look) or ()
    ]
    yield from _distrust(context, tls, source, asking)


def notes(context: Context) -> Iterator[str]:
    """Report what the operator should know of TLS besides refusals."""
    node, tls = context.target, context.need(look)
    if tls.unknown:
        yield (
            f"node {node.name}: not checked: its TLS files: its own configuration may set "
            f"{', '.join(tls.unknown)}"
        )
    certificate = tls.certificate
    if certificate is not None and not certificate.is_for(node.pooler_host):
        whose = " (a copy of its source's)" if tls.copied else ""
        yield (
            f"node {node.name}: its certificate{whose} is for {certificate.shown}, not for "
            f"{node.pooler_host}: clients with sslmode=verify-full refuse it"
        )


def _distrust(
    context: Context, tls: Tls, source: OfSource, asking: Sequence[tuple[str, str, str]]
) -> Iterator[TargetUnfit]:
    """Refuse a certificate that a client would not trust; `asking`: client, sslmode, host."""
    node, certificate = context.target, tls.certificate
    if certificate is None:
        return
    whose = (
        f"its certificate, copied from node {context.plan.source},"
        if tls.copied
        else "its certificate"
    )
    fix = f"give node {node.name} files of its own with `{_OWN}`" if tls.copied else "replace it"
    for who, mode, host in asking:
        if mode != "verify-full" or host.startswith("/") or certificate.is_for(host):
            continue
        yield TargetUnfit(
            node.name,
            "tls_name",
            f"{whose} is for {certificate.shown}, not for {host}: {who} (verify-full) would "
            "refuse it",
            hint=f"{fix}, with {host} in the certificate's subjectAltName",
        )
    if source.sslmode not in ("verify-ca", "verify-full"):
        return
    if certificate.trusted is False:
        yield TargetUnfit(
            node.name,
            "tls_issuer",
            f"{whose} was not issued by an authority that shardctl trusts (sslrootcert)",
            hint=f"{fix}, issued by a trusted one; or add its authority to the sslrootcert file",
        )
    now = datetime.now(UTC)
    if not certificate.begins <= now <= certificate.ends:
        yield TargetUnfit(
            node.name,
            "tls_expired",
            f"{whose} is valid from {certificate.begins:%Y-%m-%d} to {certificate.ends:%Y-%m-%d}",
            hint=f"{fix}, valid now",
        )


def _given(node: Node) -> dict[str, str]:
    """Return the node's own TLS parameters."""
    settings = {name.lower(): value for name, value in node.settings.items()}
    return {name: value for name, value in settings.items() if name in ("ssl", PASSPHRASE, *FILES)}


def _inside(target: Node, path: str) -> str | None:
    """Return the path within the clone's data directory; None for another path, or none."""
    if not path:
        return None
    place = PurePosixPath(path)
    if not place.is_absolute():
        return str(place)
    if target.data_directory is None or not place.is_relative_to(target.data_directory):
        return None
    return str(place.relative_to(target.data_directory))


def _is_on(settings: Mapping[str, str]) -> bool:
    """Read a boolean as the server does, which accepts prefixes of words."""
    said = settings.get("ssl", "off").lower()
    return any(word.startswith(said) for word in ("on", "true", "yes", "1")) and said not in (
        "",
        "o",
    )


def _authorities(sslrootcert: str) -> bytes | None:
    """Read the file of authorities that libpq trusts here; None where there is none."""
    if sslrootcert == _SYSTEM:
        return None
    try:
        path = Path(sslrootcert) if sslrootcert else Path.home() / ".postgresql" / "root.crt"
        return path.read_bytes()
    except (OSError, RuntimeError):  # no home, too: libpq reports it when it needs the file
        return None


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


def look_at_key(context: Context) -> Key | None:
    """Look at a key that is not copied with the data; None where there is none, or no stat.

    Raises what `Host.run` raises.
    """
    found, machine = context.need(look), context.need(target.look)
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


def judge_key(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a key with which the server would not start."""
    key, name = context.need(look_at_key), context.target.name
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
    if key.encrypted and not context.need(look_at_source).asks_passphrase(context.target):
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


def note_key(context: Context) -> Iterator[str]:
    """Report that the key could not be checked, or not compared with the certificate."""
    found, key, name = context.need(look), context.need(look_at_key), context.target.name
    if found.key is not None and key is None:
        yield f"node {name}: not checked: its TLS key: its host has no stat"
    elif key is not None and key.fits is None:
        yield f"node {name}: not checked: whether its TLS key matches its certificate"
