"""The libraries that a server loads when it starts: whether the clone finds them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardctl.hosts import scripts
from shardctl.meter import listed
from shardctl.moves.preflight import server, target
from shardctl.moves.refusals import TargetUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.moves.preflight.subject import Context
    from shardctl.moves.preflight.target import Machine
    from shardctl.postgres.binaries import Binaries
    from shardctl.topology.model import Node

PRELOADED = "shared_preload_libraries"
PATH = "dynamic_library_path"

_SECONDS = 30.0
_WORD = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^",]*?))\s*(?:,|$)')


def names(setting: str) -> list[str]:
    """List the libraries that `shared_preload_libraries` names.

    >>> names('pg_stat_statements, "$libdir/my lib",repmgr'), names(" ")
    (['pg_stat_statements', '$libdir/my lib', 'repmgr'], [])
    """
    found = (quoted.replace('""', '"') or plain for quoted, plain in _WORD.findall(setting))
    return [name for name in found if name]


def look(context: Context) -> list[str] | None:
    """Name the libraries that the target's host lacks; None where that is unknown."""
    settings, programs = context.need(server.look).settings, context.need(target.programs)
    return missing(context.target, settings, programs, context.need(target.look))


def missing(
    node: Node, settings: Mapping[str, str], programs: Binaries, machine: Machine
) -> list[str] | None:
    """Name the libraries that the node's host lacks; None where that is unknown.

    `settings` are the source's, which the clone gets where the node has none of its own. Raises
    what `Host.run` raises.
    """
    given = _given(node, settings)
    if PRELOADED not in given:
        return None
    wanted = names(given[PRELOADED])
    return lacking(node, settings, wanted, programs=programs, machine=machine)


def lacking(
    node: Node,
    settings: Mapping[str, str],
    wanted: Sequence[str],
    *,
    programs: Binaries,
    machine: Machine,
) -> list[str] | None:
    """Name the wanted libraries that a server there would not find; see `missing`."""
    if not wanted:
        return []
    path = _given(node, settings).get(PATH, "$libdir")
    argv = scripts.argv("libraries", str(programs.directory), path, *wanted)
    done = machine.host.run(argv, user=machine.account, timeout=_SECONDS)
    said = done.stdout.splitlines()
    return said[1:] if said else None


def _given(node: Node, settings: Mapping[str, str]) -> dict[str, str]:
    return {**settings, **{name.lower(): value for name, value in node.settings.items()}}


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a host that lacks libraries without which the clone would not start."""
    if lacking := context.need(look):
        yield TargetUnfit(
            context.target.name,
            "preload_libraries",
            f"its host lacks {listed(lacking)}, which {PRELOADED} names: the clone would not start",
            hint="install the missing packages there, or leave the names out with `settings: "
            f"{{{PRELOADED}: ...}}` of the node",
        )


def notes(context: Context) -> Iterator[str]:
    """Report that the libraries could not be checked."""
    if context.need(look) is None:
        yield f"node {context.target.name}: not checked: whether it has the {PRELOADED}"
