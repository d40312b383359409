"""Waves: every shard once, in the sizes that were asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardctl.rollout import rollback
from shardctl.rollout.waves import Wanted, split
from shardctl.state.rollouts import Rollout, merged, open_one
from shardctl.topology.model import NodeName, ShardId

FLEETS = st.lists(st.integers(0, 40), min_size=1, max_size=5).map(
    lambda sizes: {
        NodeName(f"n{number}"): [ShardId(number * 100 + shard) for shard in range(size)]
        for number, size in enumerate(sizes)
    }
)
PERCENTS = st.sets(st.integers(1, 99)).map(lambda found: (*sorted(map(float, found)), 100.0))


@given(
    FLEETS,
    st.one_of(
        st.builds(Wanted, canary=st.integers(1, 50)),
        st.builds(Wanted, percents=PERCENTS),
        st.builds(Wanted, canary=st.integers(1, 50), percents=PERCENTS),
        st.builds(Wanted, first=st.lists(st.integers(0, 450)).map(tuple)),
        st.just(Wanted()),
    ),
)
def test_each_shard_is_in_one_wave_and_no_wave_is_empty(
    fleet: dict[NodeName, list[ShardId]], wanted: Wanted
) -> None:
    waves = split(fleet, wanted)
    every = [shard for wave in waves for shard in wave]
    assert sorted(every) == sorted(shard for shards in fleet.values() for shard in shards)
    assert all(waves)


@given(FLEETS, PERCENTS)
def test_after_each_wave_its_part_is_done(
    fleet: dict[NodeName, list[ShardId]], percents: tuple[float, ...]
) -> None:
    total = sum(map(len, fleet.values()))
    done = 0
    reached = []
    for wave in split(fleet, Wanted(percents=percents)):
        done += len(wave)
        reached.append(done)
    wanted = {-(-total * part // 100) for part in percents} - {0}
    assert reached == sorted(wanted)


@given(st.lists(st.sets(st.integers(0, 30)), max_size=5), st.sets(st.integers(0, 40)))
def test_the_way_back_has_every_shard_once(waves: list[set[int]], has: set[int]) -> None:
    shards = [ShardId(shard) for shard in sorted(has)]
    apart: list[list[ShardId]] = []
    for wave in waves:
        apart.append([ShardId(s) for s in sorted(wave) if not any(s in one for one in apart)])
    back = rollback.order(shards, apart)
    assert sorted(shard for wave in back for shard in wave) == shards
    places = {shard: n for n, wave in enumerate(apart) for shard in wave}
    order = [places.get(shard, len(apart)) for wave in back for shard in wave]
    assert order == sorted(order, reverse=True)


def test_the_newest_state_of_a_rollout_counts() -> None:
    first = Rollout("5f3a", {}, ((ShardId(0),),))
    done = first.to("running", wave=1).to("done")
    assert merged([[first], [done], [first]]) == [done]
    assert open_one([[first], [done]]) is None
    assert open_one([[first], []]) == first
