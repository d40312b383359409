"""Which texts share a message: in order, bounded, and none that was not accepted by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.provision import messages
from shardctl.provision.messages import Piece
from shardctl.provision.plan import ShardWork
from shardctl.state.migrations import Migration
from shardctl.topology.model import ShardId

COLUMN = "ALTER TABLE t ADD COLUMN c int"


def file(number: int, text: str) -> Migration:
    return Migration(Path(f"{number:04}_f.sql"), number, text, f"{number}", transactional=True)


def pieces(shards: int, *files: Migration, longer: int = 0) -> list[Piece]:
    """Give what so many shards get: a text of ours, the files, and a check of each file."""
    found = []
    for number in range(shards):
        work = ShardWork(ShardId(number), f"shard{number}", migrations=files)
        found.append(Piece(work, b"SELECT 1;" + b" " * longer))
        for one in files:
            found.append(Piece(work, f"SET x TO {number};{one.text}".encode(), one))
            found.append(Piece(work, b"ALTER TABLE t ADD CHECK (true)", one, 1))
    return found


@given(
    st.integers(1, 12),
    st.lists(st.sampled_from([COLUMN, "UPDATE t SET c = 1", "DROP TABLE t -- ;"]), max_size=3),
    st.integers(0, messages.MOST_BYTES),
)
def test_messages_hold_all_pieces_in_order_and_are_bounded(
    shards: int, texts: list[str], longer: int
) -> None:
    given_ = pieces(shards, *(file(i, text) for i, text in enumerate(texts)), longer=longer)
    found = list(messages.joined(given_))
    assert [piece for message in found for piece in message] == given_
    accepted = set()
    for message in found:
        assert len(message) == 1 or len(messages.text(message)) <= messages.MOST_BYTES
        for piece in message:
            if not piece.ours:
                assert len(message) == 1 or piece.migration in accepted
                accepted.add(piece.migration)


def test_a_file_shares_a_message_once_it_was_sent_by_itself() -> None:
    found = list(messages.joined(pieces(50, file(1, COLUMN))))
    assert [len(message) for message in found] == [1, 1, 50 * 3 - 2]


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE t SET c = 1",  # may take long, and would be repeated where it fails
        "SELECT setval('s', 1)",  # its rows would be kept until the message ends
        COLUMN + "; DO $$ BEGIN END $$",
        COLUMN + "--" + "x" * messages.MOST_BYTES,
    ],
)
def test_a_file_that_is_long_or_does_more_than_define_is_always_sent_by_itself(text: str) -> None:
    found = list(messages.joined(pieces(5, file(1, text))))
    assert all(len(message) == 1 for message in found if any(not p.ours for p in message))


def test_a_text_ends_before_the_next_one_even_if_it_ends_in_a_comment() -> None:
    work = ShardWork(ShardId(0), "shard0")
    assert messages.text([Piece(work, b"SELECT 1 -- a"), Piece(work, b"SELECT 2")]) == (
        b"SELECT 1 -- a\n;\nSELECT 2"
    )
    assert messages.text([Piece(work, b"SELECT 1")]) == b"SELECT 1"
