"""The block of postgresql.conf that shardctl writes and rewrites."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardctl.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "postgresql.conf"
BEGIN = "# shardctl: from here"
END = "# shardctl: to here. Set further parameters in the topology (nodes.NAME.settings)."

_SETTING = re.compile(r"[a-z_][a-z0-9_$]*(\.[a-z_][a-z0-9_$]*)?", re.IGNORECASE)
_OURS = {
    "port": "nodes.NAME.port sets it",
    "data_directory": "nodes.NAME.data_directory sets it",
}
_ESCAPES = str.maketrans({"'": "''", "\\": r"\\", "\n": r"\n", "\r": r"\r"})


def setting_refused(name: str, reason: str) -> Refused:
    """Report a server parameter that the topology may not set, or that does not exist."""
    return Refused(
        "setting_refused",
        f"settings: {name}: {reason}",
        hint=f"remove {name} from the node's settings",
    )


def block(*, node: str, host: str, port: int, settings: Mapping[str, str]) -> str:
    r"""Compose the block for one node; raises setting_refused.

    >>> print(block(node="a", host="::1", port=6101, settings={"search_path": "a'b"}), end="")
    # shardctl: from here
    listen_addresses = '::1'
    unix_socket_directories = ''
    cluster_name = 'a'
    search_path = 'a''b'
    port = '6101'
    # shardctl: to here. Set further parameters in the topology (nodes.NAME.settings).
    """
    return composed(parameters(node=node, host=host, port=port, settings=settings))


def composed(values: Mapping[str, str]) -> str:
    """Write the block of these parameters."""
    return f"{BEGIN}\n{lines(values)}{END}\n"


def lines(values: Mapping[str, str]) -> str:
    """Write parameters as a configuration file has them."""
    return "".join(f"{name} = '{value.translate(_ESCAPES)}'\n" for name, value in values.items())


def parameters(*, node: str, host: str, port: int, settings: Mapping[str, str]) -> dict[str, str]:
    """Give the parameters of one node, in the block's order; raises setting_refused."""
    values = {"listen_addresses": host, "unix_socket_directories": "", "cluster_name": node}
    for given, value in settings.items():
        name = given.lower()
        if name in _OURS:
            raise setting_refused(given, _OURS[name])
        if _SETTING.fullmatch(given) is None:
            raise setting_refused(given, "is not the name of a server parameter")
        if "\0" in value:
            raise setting_refused(given, "its value contains a zero byte")
        values[name] = value
    values["port"] = str(port)
    return values


def replace(text: str, new: str) -> str:
    """Put the block `new` in the place of the old one, or at the end when there is none."""
    begin = text.find(BEGIN)
    end = text.find(END, begin)
    if begin < 0 or end < 0:
        return text + ("" if text.endswith("\n") or not text else "\n") + new
    return text[:begin] + new + text[end + len(END) :].removeprefix("\n")
