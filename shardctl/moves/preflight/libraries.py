"""Preflight of the libraries that a server loads at its start: whether a clone finds them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardctl.moves.refusals import TargetUnfit, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.hosts.host import Host
    from shardctl.postgres.binaries import Binaries
    from shardctl.topology.model import Node

PRELOADED = "shared_preload_libraries"
PATH = "dynamic_library_path"

_SECONDS = 30.0
_WORD = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^",]*?))\s*(?:,|$)')
# Where a server's libraries are, is asked of pg_config, which not every host has; every server
# has the library by which standbys follow. Then those are told that are not there.
_MISSING = """
bin=$1 path=$2
shift 2
libdir=
for directory in "$("$bin/pg_config" --pkglibdir 2>/dev/null)" "$bin/../lib" \\
    "$bin/../lib/postgresql" "$bin/../lib64"; do
    for suffix in .so .dylib; do
        [ -z "$libdir" ] && [ -e "$directory/libpqwalreceiver$suffix" ] || continue
        libdir=$directory dl=$suffix
    done
done
[ -n "$libdir" ] || exit 0
printf '%s\\n' "$libdir"
is_there() {
    case $1 in '$libdir'*) set -- "$libdir${1#?libdir}" ;; esac
    [ -e "$1" ] || [ -e "$1$dl" ]
}
is_on_path() {
    rest=$path:
    while [ -n "$rest" ]; do
        ! is_there "${rest%%:*}/$1" || return 0
        rest=${rest#*:}
    done
    return 1
}
for name; do
    case $name in
    */*) is_there "$name" ;;
    *) is_on_path "$name" ;;
    esac || printf '%s\\n' "$name"
done
"""


def names(setting: str) -> list[str]:
    """List the libraries that `shared_preload_libraries` names.

    >>> names('pg_stat_statements, "$libdir/my lib",repmgr'), names(" ")
    (['pg_stat_statements', '$libdir/my lib', 'repmgr'], [])
    """
    found = (quoted.replace('""', '"') or plain for quoted, plain in _WORD.findall(setting))
    return [name for name in found if name]


def look(
    node: Node,
    settings: Mapping[str, str],
    programs: Binaries,
    host: Host,
    account: str | None,
) -> list[str] | None:
    """Name the libraries that the node's host lacks; None where nobody tells.

    `settings` are the source's, which the clone gets where the node has none of its own. Raises
    what `Host.run` raises.
    """
    given = {**settings, **{name.lower(): value for name, value in node.settings.items()}}
    wanted = names(given.get(PRELOADED, ""))
    if PRELOADED not in given:
        return None
    if not wanted:
        return []
    argv = ["sh", "-c", _MISSING, "sh", str(programs.directory), given.get(PATH, "$libdir")]
    said = host.run([*argv, *wanted], user=account, timeout=_SECONDS).stdout.splitlines()
    return said[1:] if said else None


def judge(node: Node, missing: Sequence[str] | None) -> Iterator[TargetUnfit]:
    """Find libraries without which the clone would not start."""
    if missing:
        yield TargetUnfit(
            node.name,
            "preload_libraries",
            f"{PRELOADED} names {listed(missing)}, which its host does not have: the clone would "
            "not start",
            hint="install there what the source has, or leave it out with `settings: "
            f"{{{PRELOADED}: ...}}` of the node",
        )
