"""What an episode does, of what is there at that moment."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from tests.soak.clients_special import UNMOVED
from tests.soak.commands import _COMMANDS, Choice, Kept, _step, kept
from tests.soak.faults import FAULTS
from tests.soak.fleet import NODES, SHARDS
from tests.soak.schedule import FAULTS as DRAWN_FAULTS
from tests.soak.schedule import OPERATIONS, episodes

TWO = {shard: "ab"[shard // 16] for shard in range(SHARDS)}
FOUR = {shard: "abcd"[shard // 8] for shard in range(SHARDS)}
NO_FILES = Path("/nonexistent")
KEPT = [
    Kept("5f3a9c1e", "a", "b", (16, 17), ("reverse", "finish")),
    Kept("0b6aea6d", "b", "a", (3,), ("finish",)),
]


def of(
    operation: str, owners: dict[int, str], kept: list[Kept] | None = None
) -> list[tuple[Choice, list[list[str]]]]:
    """Give what the first hundred such episodes of a seed do."""
    drawn = (one for one in episodes(5) if one.operation == operation)
    made = [Choice(NODES, owners, NO_FILES, one, kept or []) for one in islice(drawn, 100)]
    return [(one, one.commands()) for one in made]


def test_everything_that_is_drawn_can_be_done() -> None:
    assert (_COMMANDS.keys(), FAULTS.keys()) == (OPERATIONS.keys(), DRAWN_FAULTS.keys())


@pytest.mark.parametrize("owners", [TWO, FOUR])
@pytest.mark.parametrize("operation", ["stream", "clone", "clone by stream", "reverse"])
def test_moves_take_shards_of_one_node_and_never_the_one_that_stays(
    operation: str, owners: dict[int, str]
) -> None:
    for choice, ((command, named, to, target, *_),) in of(operation, owners):
        shards = [int(shard) for shard in named.split(",")]
        assert (command, to, target) == ("move-shards", "--to", choice.target)
        assert {owners[shard] for shard in shards} == {choice.source} != {choice.target}
        assert UNMOVED not in shards
        assert tuple(shards) == choice.shards


def test_streams_go_to_nodes_with_shards() -> None:
    assert {choice.target for choice, _ in of("stream", TWO)} == {"a", "b"}


def test_clones_go_to_nodes_without_shards() -> None:
    found = of("clone", TWO)
    assert {choice.target for choice, _ in found} == {"c", "d"}
    assert any("--read-only" in words for _, (words,) in found)


def test_clones_hand_over_as_they_are_drawn() -> None:
    for operation, handover in {"clone": "promote", "clone by stream": "stream"}.items():
        for choice, (words,) in of(operation, TWO):
            assert words[words.index("--handover") + 1] == handover
            assert choice.target in {"c", "d"}
            assert ("--keep-reverse" in words) == (handover == "stream")


def test_where_no_node_is_empty_one_is_emptied_by_a_stream() -> None:
    for choice, (words,) in of("clone", FOUR):
        assert words[words.index("--method") + 1] == "stream"
        assert choice.shards == tuple(s for s, node in FOUR.items() if node == choice.source)
        assert choice.source != FOUR[UNMOVED]
        assert "--read-only" not in words


def test_what_is_made_read_only_is_made_writable_again() -> None:
    for choice, (on, off) in of("read-only", FOUR):
        assert (on[:2], off[:2]) == (["read-only", "on"], ["read-only", "off"])
        assert on[2:] == off[2:]
        assert choice.shards


def test_a_migration_adds_a_column_and_the_next_one_drops_it(tmp_path: Path) -> None:
    (tmp_path / "0001_writes.sql").touch()
    episode = next(one for one in episodes(5) if one.operation == "migrate")
    for _ in range(2):
        (words,) = Choice(NODES, TWO, tmp_path, episode).commands()
        assert words == ["migrate", "--yes", "--finish-reverse"]
    assert "ADD COLUMN extra" in (tmp_path / "0002_extra.sql").read_text()
    assert "DROP COLUMN extra" in (tmp_path / "0003_extra.sql").read_text()


def test_a_reverse_gives_back_what_a_move_that_can_be_reversed_has_moved() -> None:
    found = of("reverse", TWO, KEPT)
    assert {tuple(words[:4]) for _, (words,) in found} == {
        ("moves", "reverse", "5f3a9c1e", "--yes")
    }
    for choice, _ in found:
        assert (choice.source, choice.target, choice.shards) == ("b", "a", (16, 17))


def test_where_nothing_can_be_reversed_a_move_is_made_that_can() -> None:
    for _, (words,) in of("reverse", TWO, KEPT[1:]):
        assert words[0] == "move-shards"
        assert words[words.index("--keep-reverse") + 1] != "0"
        assert words.count("--keep-reverse") == 1


def test_some_streams_keep_a_reverse_and_clones_cannot() -> None:
    given = {words[words.index("--keep-reverse") + 1] for _, (words,) in of("stream", TWO)}
    assert given == {"0", "10m"}
    assert not any("--keep-reverse" in words for _, (words,) in of("clone", TWO))
    # Where no node is empty, a clone is a stream.
    assert all("--keep-reverse" in words for _, (words,) in of("clone", FOUR))


def test_what_can_be_finished_is_finished() -> None:
    found = {words[2] for _, (words,) in of("finish", TWO, KEPT)}
    assert found == {"5f3a9c1e", "0b6aea6d"}
    assert all(commands == [] for _, commands in of("finish", TWO))


def test_moves_that_can_be_reversed_or_finished_are_read_from_the_list() -> None:
    shown = {"source": "a", "target": "b", "shards": [16, 17]}
    listed = [
        {"id": "5f3a9c1e", "can": ["reverse", "finish"], **shown},
        {"id": "11111111", "can": [], **shown},
        {"id": "22222222", "can": ["prune"], **shown},
    ]
    assert kept(json.dumps({"moves": listed})) == KEPT[:1]


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("INFO shardctl.moves.step: move 5f3a9c1e: step keep-reverse: running", "keep-reverse"),
        ("INFO shardctl.moves.step: move 5f3a9c1e: step cutover: done", ""),
        ('DEBUG shardctl.pgbouncer.console: pooler p1: PAUSE "shard18"', "pause"),
        ('DEBUG shardctl.pgbouncer.console: pooler p1: in one packet: RESUME "app_b";', ""),
    ],
)
def test_the_log_tells_which_step_begins(line: str, step: str) -> None:
    assert _step(line) == step


def test_repack_leaves_out_the_shard_in_which_a_client_alters_tables() -> None:
    assert UNMOVED not in {int(words[1]) for _, (words,) in of("repack", FOUR)}
