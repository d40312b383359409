"""Several commands to a pooler's console in one packet, so that nothing comes between them.

PgBouncer handles all that has arrived over one connection before it looks at any other, as far as
its buffer reaches (`pkt_buf` times `sbuf_loopcnt`, 20 kB unless configured otherwise, which is 800
commands). libpq cannot send that: it waits for the answer to a command before it takes the next,
and its pipeline mode speaks the extended protocol, which the console does not know. So this writes
the messages to libpq's own socket, reads the answers from there, and leaves the session as if it
had never been used. It cannot where the session is encrypted: libpq has the keys.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from shardctl import wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg.pq.abc import PGconn

_HEAD = struct.Struct("!cI")
_AT_ONCE = 65_536
_READY, _ERROR = b"Z", b"E"


class Broken(Exception):
    """A session that broke off, or did not answer in time."""


class Answer(NamedTuple):
    """What became of one command; `error` is None where it was done."""

    command: str
    error: str | None


def exchange(connection: PGconn, commands: Sequence[str], *, seconds: float) -> list[Answer]:
    """Send commands at once, and give the answers; raises Broken, and then the session is lost.

    The session is idle and not encrypted. Rows of commands are ignored.
    """
    deadline = time.monotonic() + seconds
    with socket.socket(fileno=os.dup(connection.socket)) as own:
        own.setblocking(False)  # as libpq has it
        answers = _conversation(own, b"".join(map(_query, commands)), deadline, seconds)
        return [Answer(command, next(answers)) for command in commands]


def _query(command: str) -> bytes:
    """Write a message of the simple protocol."""
    text = command.encode() + b"\0"
    return _HEAD.pack(b"Q", len(text) + 4) + text


def _conversation(
    own: socket.socket, unsent: bytes, deadline: float, seconds: float
) -> Iterator[str | None]:
    """Send all and give, for each command, the error with which it ended, or None."""
    arrived = bytearray()
    error: str | None = None
    try:
        while True:
            # Answers are read while there is more to send: else both sides might wait for ever.
            left = deadline - time.monotonic()
            if left <= 0:
                raise Broken(f"no response within {seconds:g} s")
            readable = wire.ready(own.fileno(), left, write=bool(unsent))
            if unsent:
                with suppress(BlockingIOError):
                    unsent = unsent[own.send(unsent) :]
            if not readable:
                continue
            data = own.recv(_AT_ONCE)
            if not data:
                raise Broken(error or "the pooler closed the connection")
            arrived += data
            for kind, body in _messages(arrived):
                if kind == _ERROR:
                    error = _text(body)
                elif kind == _READY:
                    yield error
                    error = None
    except OSError as broken:
        raise Broken(broken.strerror or str(broken)) from broken


def _messages(arrived: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Take whole messages out of what has arrived."""
    while len(arrived) >= _HEAD.size:
        kind, length = _HEAD.unpack_from(arrived)
        if len(arrived) < length + 1:
            return
        body = bytes(arrived[_HEAD.size : length + 1])
        del arrived[: length + 1]
        yield kind, body


def _text(body: bytes) -> str:
    """Give the text of an error: of its fields, each with a letter before it, that of M."""
    fields = {field[:1]: field[1:] for field in body.split(b"\0")}
    return fields.get(b"M", b"an error without a text").decode(errors="replace")
