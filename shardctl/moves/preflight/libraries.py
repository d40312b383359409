"""Libraries of functions in C: whether the target's host has them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shardctl.hosts import scripts
from shardctl.meter import listed
from shardctl.moves.preflight import server, target
from shardctl.moves.preflight.subject import QUERIES
from shardctl.moves.refusals import TargetUnfit
from shardctl.postgres.connection import NodeUnavailable, connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.moves.preflight.subject import Context
    from shardctl.moves.preflight.target import Machine
    from shardctl.postgres.binaries import Binaries
    from shardctl.topology.model import Node


PATH = "dynamic_library_path"

_SECONDS = 30.0


def lacking(
    node: Node,
    settings: Mapping[str, str],
    wanted: Sequence[str],
    *,
    programs: Binaries,
    machine: Machine,
) -> list[str] | None:
    """Name the wanted libraries that a server there would not find; None where that is unknown.

    `settings` are the source's, which the clone gets where the node has none of its own. Raises
    what `Host.run` raises.
    """
    if not wanted:
        return []
    path = _given(node, settings).get(PATH, "$libdir")
    argv = scripts.argv("libraries", str(programs.directory), path, *wanted)
    done = machine.host.run(argv, user=machine.account, timeout=_SECONDS)
    said = done.stdout.splitlines()
    return said[1:] if said else None


def _given(node: Node, settings: Mapping[str, str]) -> dict[str, str]:
    return {**settings, **{name.lower(): value for name, value in node.settings.items()}}


def look_at_source(context: Context) -> dict[str, str]:
    """List these files in all databases of the source, each with one object that needs it."""
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
    settings, programs = context.need(server.look).settings, context.need(target.programs)
    wanted = list(context.need(look_at_source))
    return lacking(
        context.target, settings, wanted, programs=programs, machine=context.need(target.look)
    )


def judge_modules(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a host that lacks files without which applications' statements would fail."""
    needed = context.need(look_at_source)
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
