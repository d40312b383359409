"""The trial: a server as the clone will be one, started without data, and logged in to.

And the clone's own login to the source.
"""

from __future__ import annotations

import base64
import re
import secrets
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

from shardctl import fanout, libpq
from shardctl.errors import together
from shardctl.hosts import accounts, ports, scripts
from shardctl.hosts.host import CommandFailed
from shardctl.ids.generator import quote_identifier
from shardctl.moves.plan import PoolerUnfit, TargetUnfit
from shardctl.moves.preflight import poolers, target
from shardctl.moves.preflight.subject import QUERIES
from shardctl.postgres import clone as clones
from shardctl.postgres import configuration
from shardctl.postgres.connection import NodeUnavailable, connect, from_host
from shardctl.postgres.hosted import HostedServer
from shardctl.postgres.split import without_passwords

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.poolers import Looked
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, Topology

_TLS = ("ssl_cert_file", "ssl_key_file", "ssl_ca_file", "ssl_crl_file", "ssl_dh_params_file")
_LOGGING = ("logging_collector=off", "log_destination=stderr", "log_line_prefix=", "lc_messages=C")
"""So that the reasons are in one place, and in one language."""
_WITHOUT_TLS = {"sslmode": "disable", "sslrootcert": "", "channel_binding": "prefer"}
_OFF = ("0", "f", "fa", "fal", "fals", "false", "n", "no", "of", "off")
_CERTIFICATES = re.compile(rb"\b(?:cert|clientcert)\b")
_REJECT = b"host all all all reject\n"
_SECONDS = 120.0
_LOGIN_S = 30.0
_POLL_S = 0.05
# Neither the copy nor the standby will have the variables of this environment.
_AS_THE_CLONE = 'unset PGPASSWORD PGSERVICE PGOPTIONS PGTARGETSESSIONATTRS; exec "$@"'


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the trial gets from the source."""

    files: Mapping[str, bytes]
    copied: bool
    """Whether the clone uses TLS files that come with its data."""
    secret: str = field(repr=False)
    """The stored form of the password by which shardctl is logged in to the source, if any."""

    @property
    def can_log_in(self) -> bool:
        """Whether a server without TLS can judge logins by these rules."""
        return not (self.copied and _CERTIFICATES.search(self.files[clones.HBA]))

    def text(self) -> str:
        """Write what the script reads."""
        rules = self.files[clones.HBA]
        if self.copied:
            rules = rules.replace(b"\nhostssl ", b"\nhost ")
        files = {**self.files, clones.HBA: rules if self.can_log_in else _REJECT}
        names = (configuration.NAME, clones.AUTO, clones.HBA, clones.IDENT)
        coded = (f"{name} {base64.b64encode(files[name]).decode()}\n" for name in names)
        return f"{self.secret}\n{''.join(coded)}"


def look(context: Context) -> bool:
    """Start the server, log in to it from here and from the poolers' hosts, and remove it.

    It has no database of applications, so it serves no client. Return whether it ran without TLS,
    because the clone's files come with the data. Raises TargetUnfit, PoolerUnfit, or Problems for
    several.
    """
    node, machine, data = context.target, context.need(target.look), context.target.data_directory
    programs, place = context.need(target.programs), context.need(target.look_at_directory)
    if data is None:  # pragma: no cover  # `directory` refuses it
        raise AssertionError(node)
    server = HostedServer(node, data, programs, machine.account, machine.host)
    asked = _ask(context, server)
    problems: list[ShardctlError] = []
    parent = Path(place.seen) if place.kind == "absent" else data.parent
    where = str(parent / f"{data.name}{target.TRIAL}"), str(data), secrets.token_hex(4)
    options = [*_LOGGING, *(["ssl=off"] if asked.copied else [])]
    words = [str(programs.directory), context.topology.database.user, *options]
    run = partial(scripts.run, machine.host, "trial", timeout=_SECONDS)

    owner = accounts.changes_folder(machine.host, parent, machine.account)
    try:
        run("make", *where, machine.account or "", user=owner)
        with ThreadPoolExecutor(1) as beside:
            start = partial(run, "try", user=machine.account, text=asked.text())
            trial = beside.submit(start, *where, *words)
            try:
                while not wait([trial], _POLL_S).done:
                    if run("ready", *where, user=machine.account):
                        problems += _logins(context, asked) if asked.can_log_in else []
                        break
            finally:
                while not wait([trial], 0).done:
                    run("over", *where, user=machine.account)
                    wait([trial], _POLL_S)
            trial.result()
    except CommandFailed as error:
        told = "\n  ".join(without_passwords(line) for line in error.lines)
        problems.append(
            TargetUnfit(
                node.name,
                "trial_failed",
                f"a server with the clone's settings did not start on its host:\n  {told}",
                hint="correct what these lines name: `settings` of the node in the topology, or "
                "files, packages and addresses of its host",
            )
        )
    finally:
        run("unmake", *where, user=owner)
    if problems:
        raise together(problems)
    return asked.copied


def _ask(context: Context, server: HostedServer) -> _Asked:
    """Compose the clone's files, and read how the source knows shardctl."""
    source, database, node = context.source, context.topology.database, context.target
    # What starts the trial reads no other configuration, as `control.start` might.
    alone = replace(server, node=replace(node, control=None))
    clone = clones.Clone(context.plan.id, context.plan.slot, alone)
    with connect(
        source, database, purpose=context.purpose, autocommit=True, observing=True
    ) as session:
        there = addresses(context.topology, node, session)
        files = clones.files(clone, clones.Source(source, database), session, there)
        settings = session.execute(QUERIES["settings"], {"names": ["ssl", *_TLS]})
        copied = _is_copied(node, dict(settings.fetchall()))
        secret = b""
        if session.pgconn.used_password:
            password, user = session.pgconn.password or b"", database.user.encode()
            secret = session.pgconn.encrypt_password(password, user, b"scram-sha-256")
        return _Asked(files, copied, secret.decode())


def note(context: Context) -> Iterator[str]:
    """Report what the trial could not show."""
    if context.need(look):
        yield (
            f"node {context.target.name}: not checked: its TLS files and logins by TLS: the clone "
            "copies files from its source"
        )


def _is_copied(node: Node, settings: Mapping[str, str]) -> bool:
    """Return whether the node's server uses TLS files that come with the source's data."""
    wanted = {**settings, **{name.lower(): value for name, value in node.settings.items()}}
    if wanted["ssl"].lower() in _OFF:
        return False
    paths = [Path(path) for name in _TLS if (path := wanted.get(name))]
    data = node.data_directory or Path("/")
    return any(not path.is_absolute() or path.is_relative_to(data) for path in paths)


def _logins(context: Context, asked: _Asked) -> Iterator[ShardctlError]:
    """Log in from here and from every pooler's host, to a database that the trial does not have."""
    node, database = context.target, context.topology.database
    if asked.copied:
        database = replace(database, options={**database.options, **_WITHOUT_TLS})
    proof = f'database "{database.name}" does not exist'
    try:
        connect(node, database, purpose=context.purpose).close()
    except NodeUnavailable as error:
        if proof not in error.reason:
            yield TargetUnfit(
                node.name,
                "trial_login",
                f"shardctl could not log in to a server with the clone's settings: {error.reason}",
                hint="correct the node's host, port or `settings`, its TLS files, its line "
                f"`{node.host}:{node.port}:...` in ~/.pgpass here, or `database.options`",
            )

    def from_pooler(looked: Looked) -> Iterator[PoolerUnfit]:
        dsn = from_host(node, database)
        why = poolers.why_unasked(context.plan, looked.pooler, dsn, node.name)
        # Without shardctl's password, the trial does not know that of the pooler's host.
        unknown = not asked.secret and "password authentication failed" in why
        if why and proof not in why and not unknown:
            yield PoolerUnfit(
                looked.pooler.name,
                "guard_login",
                "a guard on its host could not log in to a server with the clone's settings: "
                f"{why}",
                hint=f"check {node.pooler_host}:{node.port} from that host, ~/.pgpass of the "
                "user who runs the pooler, and the files that database.options name",
            )
            return
        if looked.config.get("server_tls_sslmode") != "verify-full":
            return
        ca = looked.config.get("server_tls_ca_file", "")
        tls = {"sslmode": "verify-full", "sslrootcert": ca}
        if asked.copied:  # the source has that certificate now
            address = next(iter(ports.addresses(context.source.pooler_host)), "")
            tls |= {"hostaddr": address, "port": str(context.source.port)}
        why = poolers.why_unasked(context.plan, looked.pooler, make_conninfo(dsn, **tls), node.name)
        if "certificate" in why or "SSL" in why:
            yield PoolerUnfit(
                looked.pooler.name,
                "tls_name",
                f"it would refuse the certificate of node {node.name} (verify-full): {why}",
                hint=f"give node {node.name} a certificate with {node.pooler_host} in its "
                "subjectAltName, issued by an authority that the pooler trusts",
            )

    for outcome in fanout.run(context.need(poolers.look), lambda one: list(from_pooler(one))):
        yield from outcome.result()


def try_replication(context: Context) -> None:
    """Log in to the source for replication, from the target's host as its server's user.

    The password comes from that user's passfile there. Raises TargetUnfit when it failed.
    """
    machine, programs = context.need(target.look), context.need(target.programs)
    database = context.topology.database
    conninfo = libpq.for_replication(context.source, database, context.purpose, replication="true")
    argv = ["sh", "-c", _AS_THE_CLONE, "sh", programs.program("psql"), "-X", "-w", "-q", "-t"]
    argv += ["-d", conninfo, "-c", "IDENTIFY_SYSTEM"]
    try:
        machine.host.run(argv, user=machine.account, env={"LC_ALL": "C"}, timeout=_LOGIN_S)
    except CommandFailed as error:
        raise TargetUnfit(
            context.plan.target,
            "replication_login",
            f"{database.replication_user} cannot log in from its host to node "
            f"{context.plan.source} for replication: {' '.join(error.lines)}",
            hint=f"run ALTER ROLE {quote_identifier(database.replication_user)} REPLICATION on the "
            f"source, add `host replication {database.replication_user} ...` to its pg_hba.conf, "
            f"and the password to ~/.pgpass of {machine.account or 'the server user'} there",
        ) from error


def addresses(topology: Topology, target: Node, source: Connection) -> list[str]:
    """Return the addresses from which shardctl and its guards log in to the target.

    They include this machine's address as the `source` sees it.
    """
    row = source.execute("SELECT host(inet_client_addr())").fetchone()
    seen = {row[0]} if row and row[0] else set()
    hosts = {target.host, *(pooler.host for pooler in topology.poolers.values())}
    found = {address for host in hosts for address in ports.addresses(host)}
    return sorted({*found, *seen, *ports.sources(target.host), "127.0.0.1", "::1"})
