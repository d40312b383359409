"""Reserves ports for servers that start later."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def held(host: str, count: int) -> Iterator[Sequence[int]]:
    """Reserve free ports: a server may listen on them, but the system assigns them to no other.

    A bound socket that does not listen keeps its port from programs that ask for any free port.
    With SO_REUSEADDR, which PostgreSQL also sets, another socket may still listen on it.
    """
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((host, 0))
            found.append(int(holder.getsockname()[1]))
        yield found
