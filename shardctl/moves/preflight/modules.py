"""The library files of C functions, mostly of extensions: whether the clone finds them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shardctl.meter import listed
from shardctl.moves.preflight import libraries, server, target
from shardctl.moves.preflight.subject import QUERIES
from shardctl.moves.refusals import TargetUnfit
from shardctl.postgres.connection import NodeUnavailable, connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context


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


def look(context: Context) -> list[str] | None:
    """Name those that the target's host lacks; None where that is unknown."""
    settings, programs = context.need(server.look).settings, context.need(target.programs)
    wanted = list(context.need(look_at_source))
    return libraries.lacking(
        context.target, settings, wanted, programs=programs, machine=context.need(target.look)
    )


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a host that lacks files without which applications' statements would fail."""
    needed = context.need(look_at_source)
    if lacking := context.need(look):
        shown = [f"{file} ({needed[file]})" for file in lacking]
        yield TargetUnfit(
            context.target.name,
            "extension_libraries",
            f"its host lacks libraries that functions of node {context.plan.source} need: "
            f"{listed(shown)}; statements that use them would fail after the cutover",
            hint="install the extensions' packages there, or drop these objects on the source",
        )


def notes(context: Context) -> Iterator[str]:
    """Report that the files could not be checked."""
    if context.need(look) is None:
        yield f"node {context.target.name}: not checked: whether it has the extensions' libraries"
