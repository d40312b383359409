"""Which texts of a chunk go to the server in one message; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardctl.provision.plan import ShardWork
    from shardctl.state.migrations import Migration

MOST_BYTES = 64 * 1024
"""Of a message with several texts: the server logs all of it for each slow or failed statement."""
_DEFINES = frozenset({"ALTER", "COMMENT", "CREATE", "DROP", "GRANT", "REVOKE", "SET"})
"""First words of statements that give no rows, which would all be kept until the message ends."""
_BETWEEN = b"\n;\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """What a shard gets: a file with its clean slate, or what shardctl itself composed.

    `line` is the file's that asked for something composed.
    """

    work: ShardWork
    text: bytes
    migration: Migration | None = None
    line: int | None = None

    @property
    def ours(self) -> bool:
        """Whether shardctl composed all of it."""
        return self.migration is None or self.line is not None


def joined(pieces: Iterable[Piece]) -> Iterator[tuple[Piece, ...]]:
    """Divide pieces into messages, in their order.

    A file's text shares a message only after a server has accepted it by itself: then all that it
    opens (a string, a comment, a dollar quote) it closes, and it cannot reach into the text after
    it. The caller runs a message before it asks for the next one.
    """
    accepted: dict[Migration, bool] = {}
    waiting: list[Piece] = []
    size = 0
    for piece in pieces:
        alone = not piece.ours and not accepted.get(piece.migration, False)  # type: ignore[arg-type]
        length = len(piece.text) + len(_BETWEEN)
        if waiting and (alone or size + length > MOST_BYTES):
            yield tuple(waiting)
            waiting, size = [], 0
        if not alone:
            waiting.append(piece)
            size += length
            continue
        yield (piece,)
        if piece.migration is not None and piece.migration not in accepted:
            accepted[piece.migration] = _defines(piece.migration)
    if waiting:
        yield tuple(waiting)


def text(message: Iterable[Piece]) -> bytes:
    """Give what is sent; of a single piece just its text, so that positions in it are right."""
    return _BETWEEN.join(piece.text for piece in message)


def _defines(migration: Migration) -> bool:
    """Return whether a file is short and only defines things.

    What changes rows may take long, and would run twice where it fails.
    """
    return len(migration.text) <= MOST_BYTES and all(
        statement.first_words[:1] and statement.first_words[0] in _DEFINES
        for statement in migration.statements()
    )
