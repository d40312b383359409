"""A node's line in the topology file: as values of its keys, and as the options of `node add`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from shardctl import inputs
from shardctl.errors import Misused
from shardctl.topology import loader, marks, ranges
from shardctl.topology.syntax import decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardctl.topology.model import ShardId, Topology

    Values = dict[str, str | dict[str, str]]

NODES = "nodes"
NONE = "none"
SECTIONS = ("settings", "ssh", "control")
"""Keys of a node that have keys of their own."""
OPTIONS = {
    "host": "--host",
    "port": "--port",
    "data_directory": "--data-directory",
    "bin_directory": "--bin-directory",
    "os_user": "--os-user",
    "pooler_host": "--pooler-host",
}
"""The other keys, and the options of `node add` for them."""
SET = "--set"


def path(name: str) -> tuple[str, ...]:
    """Give the path of a node in the file."""
    return NODES, name


def values(given: Mapping[str, str | None], pairs: Iterable[str] = ()) -> Values:
    """Give the line of a node without shards; `pairs` are such as `ssh.user=ops`.

    Raises bad_node_option.

    >>> values({"host": "h", "port": "1", "os_user": None}, ["settings.work_mem=4MB"])
    {'host': 'h', 'port': '1', 'shards': 'none', 'settings': {'work_mem': '4MB'}}
    """
    line: Values = {"host": given.get("host") or "", "port": given.get("port") or ""}
    line["shards"] = NONE
    line |= {key: text for key, text in given.items() if text and key not in line}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        section, dot, inner = key.partition(".")
        if not (equals and dot and inner) or section not in SECTIONS:
            raise Misused(
                "bad_node_option",
                f"{SET} {pair.partition('=')[0]!r} is not a key of a node's {', '.join(SECTIONS)}",
                hint=f"write for example {SET} ssh.user=ops or {SET} settings.work_mem=64MB",
            )
        within = line.setdefault(section, {})
        if isinstance(within, dict):
            within[inner] = text
    return line


def written(topology: Topology, name: str) -> Values:
    """Read what the file has in a node's line, as it is written there."""
    text = decode(inputs.read(topology.path, loader.MOST_BYTES))
    found = marks.read(text).data[NODES].get(name) or {}
    return {key: _plain(value) for key, value in found.items() if value is not None}


def _plain(value: Any) -> str | dict[str, str]:
    if isinstance(value, dict):
        return {key: str(text) for key, text in value.items() if text is not None}
    return str(value)


def command(name: str, line: Mapping[str, str | Mapping[str, str]], *more: str) -> str:
    """Write the `node add` that gives a node this line.

    >>> print(command("c", {"host": "h", "port": "1", "shards": "none", "ssh": {"user": "o p"}}))
    shardctl node add c --host h --port 1 --set 'ssh.user=o p'
    """
    words = ["shardctl", "node", "add", name]
    for key, option in OPTIONS.items():
        if text := line.get(key):
            words += [option, str(text)]
    for section in SECTIONS:
        within = line.get(section)
        if not isinstance(within, str) and within:
            for key, text in within.items():
                words += [SET, f"{section}.{key}={text}"]
    return shlex.join([*words, *more])


def differing(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Name the keys, but for the shards, that two lines have otherwise."""
    return sorted(
        key for key in old.keys() | new.keys() if key != "shards" and old.get(key) != new.get(key)
    )


def shards(found: Iterable[int | ShardId]) -> str:
    """Write shards as ranges, with blanks at which a line can be folded."""
    return ranges.of(sorted(found)).replace(",", ", ")
