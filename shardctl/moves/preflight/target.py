"""The target's machine: the user, programs, libraries, clock and commands that run its server.

Debian keeps a cluster's configuration under /etc/postgresql, and its `pg_lsclusters`,
`pg_ctlcluster` and init scripts use it. They do not know a clone that was started without them.
"""

from __future__ import annotations

import logging
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.checks import clock, hosts
from shardctl.hosts import accounts, scripts
from shardctl.hosts.host import CommandFailed, CommandTimedOut, HostLost, HostUnreachable
from shardctl.hosts.reach import HostUnfit, host_of
from shardctl.meter import listed
from shardctl.moves import sub_step
from shardctl.moves.plan import PreflightRefused, TargetUnfit
from shardctl.moves.preflight import schemas, server
from shardctl.moves.preflight.subject import QUERIES
from shardctl.postgres import binaries
from shardctl.postgres.connection import NodeUnavailable, connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.checks.clock import Offset
    from shardctl.hosts.host import Host
    from shardctl.moves.preflight.server import Server
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.binaries import Binaries
    from shardctl.topology.model import Node

PROGRAMS = ("pg_basebackup",)
"""What a clone needs besides the server's own programs."""

TRIAL = ".trial"
"""The end of the name of a trial's directory, which is beside the data directory."""

_SECONDS = 30.0
_CONNECT_S = 5.0

logger = logging.getLogger(__name__)

_PROGRAMS = Path("/usr/lib/postgresql")
"""Where Debian's packages install PostgreSQL's programs."""
_LIST = "command -v pg_lsclusters >/dev/null || exit 0; echo here; exec pg_lsclusters --no-header"
_LINE = re.compile(r"(\S+)\s+(\S+)\s+\d+\s+\S+\s+\S+\s+(/.*)")
_CONF_ROOT = "PG_CLUSTER_CONF_ROOT="
_STARTED = re.compile(
    r"(?:\bpg_ctlcluster\s+(?:-\S+\s+)*|\bpostgresql@)"
    r"(\d+(?:\.\d+)?)[\s-]+([\w.-]+?)(?:\.service)?(?![\w.-])"
)
_PAGE = "docs/howto/real-hosts.md"


@dataclass(frozen=True, slots=True)
class Machine:
    """The target's host, and the user who runs its server; None is the current user."""

    host: Host
    account: str | None = None


def look(context: Context) -> Machine:
    """Reach the target's host."""
    host = host_of(context.target)
    return Machine(host, accounts.account_on(host, context.target.os_user))


def look_at_port(context: Context) -> None:
    """See that nothing listens at the target's address; raises TargetUnfit."""
    node = context.target
    if _listens(node) and _still_listens(context):
        raise TargetUnfit(
            node.name,
            "port_taken",
            f"a program listens at {node.host}:{node.port}",
            hint="correct the node's host and port in the topology; or, if it is a server that is "
            "not needed any more, stop it and move its data directory away",
        )


def _still_listens(context: Context) -> bool:
    """Look again after another preflight's trial has ended, if one runs there."""
    machine, data = context.of(look), context.target.data_directory
    if machine is not None and data is not None:
        where = f"{data}{TRIAL}", str(data)
        scripts.run(
            machine.host, "trial", "idle", *where, user=machine.account, timeout=3 * _SECONDS
        )
    return _listens(context.target)


def measure(context: Context) -> float:
    """Measure a round trip to the target's machine, in ms."""
    context.need(look_at_port)  # an unreachable machine is not measured
    return sub_step.of_machine(context.target)


def programs(context: Context) -> Binaries:
    """Find the node's PostgreSQL programs; raises TargetUnfit where some are missing."""
    node, machine = context.target, context.need(look)
    found = binaries.find(node.bin_directory, account=machine.account, host=machine.host)
    for name in PROGRAMS:
        argv = [found.program(name), "--version"]
        try:
            machine.host.run(argv, user=machine.account, timeout=_SECONDS)
        except CommandFailed as error:
            raise TargetUnfit(
                node.name,
                "programs",
                f"{found.directory} has no working {name}, which a clone needs",
                hint="install PostgreSQL's client and server programs there, or give the node "
                "another bin_directory",
            ) from error
    return found


def judge_version(context: Context) -> Iterator[TargetUnfit]:
    """Refuse programs of another major version than the source's."""
    node, there, source = context.target, context.need(programs), context.need(server.look)
    if there.major == source.major:
        return
    machine = context.need(look)
    fitting = binaries.of_major(source.major, machine.host, account=machine.account)
    streams = (
        f"to use PostgreSQL {there.major}, start the node's server and run `shardctl init`, which "
        "makes it a member: shards are streamed to members. To clone, "
        if there.major > source.major
        else ""
    )
    yield TargetUnfit(
        node.name,
        "version",
        f"expected PostgreSQL {source.major} (the source has {source.version}), found "
        f"{there.major} in {there.directory}",
        hint=streams
        + (
            f"set bin_directory of node {node.name} to {fitting.directory}"
            if fitting
            else f"install PostgreSQL {source.major} there, and set the node's bin_directory"
        ),
    )


def control(context: Context) -> None:
    """Run the operator's status command; raises TargetUnfit where its answer is unclear."""
    machine = context.need(look)
    why = hosts.why_no_status(machine.host, context.target, machine.account)
    if why is not None:
        raise TargetUnfit(
            context.target.name,
            "control",
            why,
            hint="correct `control` of the node: `sh -c` runs its commands on its host as the "
            "user who logs in there, without a terminal for a password",
        )


def libc(context: Context) -> tuple[str | None, str | None]:
    """Return both hosts' C library version, which orders indexes; None where it is unknown."""
    context.need(look)
    return _libc(context.source), _libc(context.target)


def judge_libc(context: Context) -> Iterator[TargetUnfit]:
    """Refuse hosts whose C libraries may sort differently, if any collation depends on them."""
    here, there = context.need(libc)
    if None in (here, there) or here == there or not context.need(schemas.look).collations:
        return
    yield TargetUnfit(
        context.target.name,
        "libc",
        f"its host has {there}, but the source's host has {here}: they may sort text differently, "
        "which corrupts indexes",
        hint="install the same version of the operating system on both hosts first",
    )


def note_libc(context: Context) -> Iterator[str]:
    """Report that the libraries could not be compared."""
    if None in context.need(libc):
        yield (
            f"node {context.target.name}: not checked: whether its C library sorts as the source's "
            "does"
        )


def _listens(node: Node) -> bool:
    """Return whether a program accepts connections there; raises TargetUnfit where unknown."""
    try:
        if node.host.startswith("/"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(_CONNECT_S)
                probe.connect(f"{node.host}/.s.PGSQL.{node.port}")
        else:
            socket.create_connection((node.host, node.port), timeout=_CONNECT_S).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError as error:
        raise TargetUnfit(
            node.name,
            "unreachable",
            f"cannot reach {node.host}:{node.port}: {error.strerror or error}",
            hint="check the node's host and port in the topology, and the network",
        ) from error
    return True


def _libc(node: Node) -> str | None:
    try:
        said = host_of(node).run(["getconf", "GNU_LIBC_VERSION"], timeout=_SECONDS)
    except (CommandFailed, CommandTimedOut, HostLost, HostUnreachable, HostUnfit):
        return None
    return said.stdout.strip()


def clock_of_source(context: Context) -> Offset:
    """Compare the source's clock with this machine's."""
    return clock.of_server(context.session)


def clock_of_target(context: Context) -> Offset:
    """Compare the clock of the target's host with this machine's."""
    return clock.of_host(context.need(look).host)


def judge_clocks(context: Context) -> Iterator[PreflightRefused]:
    """Compare the clocks of source and target, as far as they are known."""
    found = {
        f"node {context.plan.source}": context.of(clock_of_source),
        f"the host of node {context.plan.target}": context.of(clock_of_target),
    }
    yield from differing_clocks({where: one for where, one in found.items() if one is not None})


def differing_clocks(offsets: Mapping[str, Offset]) -> Iterator[PreflightRefused]:
    """Find clocks that differ for certain by more than `clock.ERROR_S`, in s.

    Two clocks may differ too much from each other, though each is close enough to this machine's.
    """
    reported: set[str] = set()
    for where, offset in offsets.items():
        if abs(offset.ahead) - offset.uncertainty > clock.ERROR_S:
            reported.add(where)
            yield _skewed(where, offset.ahead, "the clock of shardctl's machine")
    rest = sorted((o.ahead, o.uncertainty, w) for w, o in offsets.items() if w not in reported)
    if len(rest) > 1:
        slow, fast = rest[0], rest[-1]
        if fast[0] - slow[0] - fast[1] - slow[1] > clock.ERROR_S:
            yield _skewed(fast[2], fast[0] - slow[0], f"that of {slow[2]}")


def _skewed(where: str, ahead: float, reference: str) -> PreflightRefused:
    direction = "ahead of" if ahead > 0 else "behind"
    return PreflightRefused(
        where,
        "clock_skew",
        f"its clock is {abs(ahead):.2f} s {direction} {reference}; a move allows at most "
        f"{clock.ERROR_S:g} s",
        hint="synchronise the clocks (chrony, systemd-timesyncd): ids contain the time",
    )


def look_for_functions(context: Context) -> dict[str, str]:
    """List the libraries that functions of the source need, each with one of these functions."""
    node, database, purpose = context.source, context.topology.database, context.purpose
    found: dict[str, str] = dict(context.session.execute(QUERIES["modules"]).fetchall())
    for (name,) in context.session.execute(QUERIES["databases"]).fetchall():
        with (
            suppress(NodeUnavailable),  # the check `contents` refuses such a database
            connect(node, database, purpose=purpose, dbname=name, autocommit=True) as other,
        ):
            found = {**dict(other.execute(QUERIES["modules"]).fetchall()), **found}
    return found


def look_for_modules(context: Context) -> list[str] | None:
    """Name those that the target's host lacks; None where that is unknown."""
    settings, wanted = context.need(server.look).settings, list(context.need(look_for_functions))
    there, machine = context.need(programs), context.need(look)
    if not wanted:
        return []
    # The clone gets the source's settings where the node has none of its own.
    own = {name.lower(): value for name, value in context.target.settings.items()}
    path = {**settings, **own}.get("dynamic_library_path", "$libdir")
    argv = scripts.argv("libraries", str(there.directory), path, *wanted)
    done = machine.host.run(argv, user=machine.account, timeout=_SECONDS)
    said = done.stdout.splitlines()
    return said[1:] if said else None


def judge_modules(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a host that lacks files without which applications' statements would fail."""
    needed = context.need(look_for_functions)
    if lacking := context.need(look_for_modules):
        shown = [f"{file} ({needed[file]})" for file in lacking]
        yield TargetUnfit(
            context.target.name,
            "extension_libraries",
            f"its host lacks libraries that functions of node {context.plan.source} need: "
            f"{listed(shown)}; statements that use them would fail after the cutover",
            hint="install the extensions' packages there, or drop these objects on the source",
        )


def note_modules(context: Context) -> Iterator[str]:
    """Report that the files could not be checked."""
    if context.need(look_for_modules) is None:
        yield f"node {context.target.name}: not checked: whether it has the extensions' libraries"


@dataclass(frozen=True, slots=True)
class Debian:
    """A host with Debian's tools; `cluster` is the one that owns the clone's data directory."""

    cluster: str | None
    """Its version and name, as `15 main`."""


def look_for_debian(context: Context) -> Debian | None:
    """Ask the target's host for Debian's clusters; None where it has no such tools."""
    machine, argv = context.need(look), ["sh", "-c", _LIST]
    c = {"LC_ALL": "C"}
    said = machine.host.run(argv, user=machine.account, env=c, timeout=_SECONDS).stdout
    return read_clusters(said, context.target.data_directory)


def read_clusters(said: str, data_directory: Path | None) -> Debian | None:
    r"""Find the cluster of a data directory in what the host printed.

    >>> said = "here\n15 main 5432 down postgres /srv/main /var/log/main.log"
    >>> read_clusters(said, Path("/srv/main")), read_clusters(said, Path("/srv/mai"))
    (Debian(cluster='15 main'), Debian(cluster=None))
    """
    first, *lines = said.splitlines() or [""]
    if first != "here":
        return None
    for line in lines:
        found = _LINE.match(line)
        if found is not None and f"{found[3]} ".startswith(f"{data_directory} "):
            return Debian(f"{found[1]} {found[2]}")
    return Debian(None)


def judge_debian(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a clone that Debian's tools would not know, on a host that uses them."""
    node, debian, source = context.target, context.need(look_for_debian), context.need(server.look)
    there = context.of(programs)
    if debian is None:
        return
    if node.control is not None and node.control.start is not None:
        cluster = started(node.control.start)
        if cluster is not None and cluster != debian.cluster:
            yield TargetUnfit(
                node.name,
                "debian_other",
                f"control.start starts Debian's cluster {cluster}, but {node.data_directory} "
                + (f"belongs to {debian.cluster}" if debian.cluster else "belongs to no cluster"),
                hint="correct `control` or data_directory: run `pg_lsclusters` on its host",
            )
    elif debian.cluster is not None:
        yield TargetUnfit(
            node.name,
            "debian_cluster",
            f"{node.data_directory} belongs to Debian's cluster {debian.cluster}, but the node "
            "has no control.start: pg_ctlcluster would not know the clone",
            hint=f"give the node `{debian_control(debian.cluster)}` ({_PAGE})",
        )
    elif there is not None and there.directory.is_relative_to(_PROGRAMS) and _is_debians(source):
        cluster = f"{source.major} {node.data_directory.name if node.data_directory else 'NAME'}"
        yield TargetUnfit(
            node.name,
            "debian_unlisted",
            "its source is a Debian cluster (pg_createcluster), but the clone would not be one: "
            "pg_lsclusters would not list it, a reboot would not start it, and it would have no "
            "Unix socket",
            hint=f"run `pg_createcluster {cluster}` on its host, then set its data_directory and "
            f"`{debian_control(cluster)}` in the topology ({_PAGE})",
        )


def started(command: str) -> str | None:
    """Return which Debian cluster a command starts; None where the command does not name one.

    >>> started("sudo -n pg_ctlcluster 15 main start"), started("pg_ctlcluster --foo 9.6-a start")
    ('15 main', '9.6 a')
    >>> started("sudo systemctl start postgresql@15-main.service"), started("start-it 15")
    ('15 main', None)

    `pg_lsclusters` does not list a cluster with a configuration directory of its own.

    >>> started("env PG_CLUSTER_CONF_ROOT=/srv/etc pg_ctlcluster 15 main start")
    """
    if _CONF_ROOT in command:
        return None
    found = _STARTED.search(command)
    return f"{found[1]} {found[2]}" if found is not None else None


def debian_control(cluster: str) -> str:
    """Return the node's `control` for a Debian cluster, given as `15 main`."""
    verbs = {"start": "start", "stop": "stop -m fast", "status": "status"}
    said = [f"{verb}: sudo -n pg_ctlcluster {cluster} {words}" for verb, words in verbs.items()]
    return f"control: {{{', '.join(said)}}}"


def _is_debians(source: Server) -> bool:
    """Return whether a server's configuration is outside its data directory, as Debian has it."""
    config, data = source.settings.get("config_file"), source.settings.get("data_directory")
    return config is not None and data is not None and not config.startswith(f"{data}/")
