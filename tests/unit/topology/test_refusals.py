"""Every refusal of a topology file, with its exact line."""
# ruff: noqa: E501  # the tables' lines are what an operator reads, whole

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from shardctl.topology import marks
from shardctl.topology.loader import TopologyInvalid, parse

FILE = Path("topology.yaml")
BASE = """\
cluster: photos
shards: {count: 8}
id: {}
database: {name: app}
nodes:
  a: {host: h, port: 1, shards: 0-3}
  b: {host: i, port: 1, shards: 4-7}
poolers:
  p: {host: j, port: 1, config: p.ini}
move: {}
"""
NO_PASSWORDS = "the topology cannot contain passwords; use a passfile (~/.pgpass, PGPASSFILE)"
NO_SECRETS = (
    "the topology cannot contain secrets; use a service file (~/.pg_service.conf,"
    " with `service: NAME` here)"
)
NAME = "use at most 40 letters, digits, _ . -, beginning with a letter or a digit"
TAB = "is not valid YAML: found character that cannot start any token (begun in line 2)"


def refusal(content: str | bytes) -> TopologyInvalid:
    raw = content.encode() if isinstance(content, str) else content
    with pytest.raises(TopologyInvalid) as refused:
        parse(raw, FILE)
    return refused.value


def bits(time: int, shard: int, sequence: int) -> tuple[str, str]:
    return "id: {}", f"id: {{bits: {{time: {time}, shard: {shard}, sequence: {sequence}}}}}"


# (what is changed in BASE, into what, the one line that is said)
CHANGES = [
    # keys
    (("cluster: photos\n", ""), "1:1: cluster: missing"),
    (("i, port: 1, ", "i, "), "7:3: nodes.b.port: missing"),
    (("move: {}", "moves: {}"), "10:1: moves: unknown key"),
    (("move: {}", "x: {}"), "10:1: x: unknown key"),
    (("0-3}", "0-2,3}"), '5:1: nodes: no node owns 3\ntopology.yaml:6:37: nodes.a.3: unknown key; within { } a list of shards needs quotes: shards: "0-1,3"'),
    (("move: {}", "move: {}\nmove: {}"), "11:1: move: duplicate key; the first is in line 10"),
    (("move: {}", "<<: {a: 1}"), "10:1: <<: unknown key"),
    (("move: {}", "? [a]\n: b"), "10:3: a key must be a single word"),
    (("photos", "!!python/name:os.system x"), "1:10: cluster: YAML tags are not supported; quote a value that begins with !"),
    # shapes
    (("photos", ""), "1:9: cluster: is empty"),
    (("photos", "[a]"), "1:10: cluster: expected a single value"),
    (("photos", '"a\\nb"'), "1:10: cluster: contains a line break or a zero byte"),
    (("move: {}", "move: 5s"), "10:7: move: expected keys and values"),
    (("{name: app}", "{name: app, options: {sslmode: }}"), "4:42: database.options.sslmode: is empty"),
    (("h, port: 1", "h, port: 1, ssh: {accept_new: maybe}"), "6:43: nodes.a.ssh.accept_new: Input should be a valid boolean, unable to interpret input"),
    # shards and ids
    (("count: 8", "count: 0"), "2:17: shards.count: 0 is not a number of shards (1-1000000)"),
    (bits(41, 2, 10), "2:17: shards.count: 8 shards do not fit in 2 bits (id.bits.shard): at most 4"),
    (bits(41, 14, 10), "3:12: id.bits: time 41 + shard 14 + sequence 10 are 65 bits; an id has 64"),
    (bits(57, 3, 1), "3:19: id.bits.time: 57 is too many for the strict generator; at most 39 with 1 of sequence, or use `generator: classic`"),
    (("id: {}", "id: {epoch: soon}"), "3:13: id.epoch: 'soon' is not a time such as 2011-08-24T21:07:01.721Z"),
    (("id: {}", "id: {epoch: 1420070400000}"), "3:13: id.epoch: '1420070400000' is not a time such as 2011-08-24T21:07:01.721Z"),
    (("id: {}", "id: {epoch: 9000-01-01}"), "3:13: id.epoch: '9000-01-01' is in the future; the epoch must be in the past"),
    (("id: {}", "id: {epoch: '2011-01-01T00:00:00.0001Z'}"), "3:13: id.epoch: '2011-01-01T00:00:00.0001Z' is not a time such as 2011-08-24T21:07:01.721Z"),
    (("id: {}", "id: {tick: 0ms}"), "3:12: id.tick: '0ms' is zero; the minimum is 1ms"),
    (("id: {}", "id: {tick: 1.5s}"), "3:12: id.tick: '1.5s' is not a duration such as 150ms, 5s, 10m, 24h or 7d"),
    (("id: {}", "id: {generator: fast}"), "3:17: id.generator: Input should be 'strict' or 'classic'"),
    (("move: {}", "move: {retain: 9999999d}"), "10:16: move.retain: '9999999d' is longer than 36500d"),
    (("count: 8", "count: 8, schema: s"), "2:28: shards.schema: 's' needs exactly one {id} (or {id:04d}) and no other braces"),
    (("count: 8", f"count: 8, schema: '{'é' * 32}{{id}}'"), "2:28: shards.schema: the schema name of shard 7 would have 65 bytes; the maximum is 63"),
    # names
    (("name: app", "name: template1"), "4:18: database.name: template1 is a template database of PostgreSQL; choose another name"),
    (("name: app", f"name: {'a' * 64}"), f"4:18: database.name: '{'a' * 40}...' is 64 bytes long; a name has at most 63"),
    (("  a: ", "  a b: "), f"6:3: nodes.a b: 'a b' is not a valid name for a node: {NAME}"),
    (("name: app", "name: app, options: {hostaddr: x}"), "4:33: database.options.hostaddr: set host, port, name or user of the node or the database instead"),
    # passwords
    (("name: app", "name: app, password: hunter2"), f"4:23: database.password: {NO_PASSWORDS}"),
    (("name: app", "name: app, options: {sslpassword: hunter2}"), f"4:33: database.options.sslpassword: {NO_PASSWORDS}"),
    (("name: app", "name: app, options: {scram_client_key: hunter2}"), f"4:33: database.options.scram_client_key: {NO_SECRETS}"),
    (("0-3}", "0-3, settings: {primary_conninfo: host=x password=hunter2}}"), f"6:67: nodes.a.settings.primary_conninfo: {NO_PASSWORDS}"),
    (("move: {}", "PGPASSWORD: [hunter2]"), f"10:1: PGPASSWORD: {NO_PASSWORDS}"),
    (("host: h", "host: 'postgres://u:hunter2@h'"), "6:13: nodes.a.host: is not one host name or address (no URL, no list, no spaces)"),
    # places
    (("h, port: 1", "h, port: 99999"), "6:22: nodes.a.port: 99999 is not a port (1-65535)"),
    (("host: i", "host: H"), "7:22: nodes.b.port: node a already uses h:1"),
    (("p.ini", "~/p.ini"), "9:33: poolers.p.config: '~/p.ini': ~ is not expanded here; write the absolute path"),
    (("p.ini}", "p.ini, aliases: []}"), "9:49: poolers.p.aliases: List should have at least 1 item after validation, not 0"),
    # ownership
    (("4-7", "4-6"), "5:1: nodes: no node owns 7"),
    (("4-7", "3-7"), "7:33: nodes.b.shards: node a also has 3; a shard belongs to one node"),
    (("4-7", "'4-7,5'"), "7:33: nodes.b.shards: node b also has 5; a shard belongs to one node"),
    (("0-3}", "0-9}\n  c: {host: k, port: 1, shards: '8-20,2'}"), "6:33: nodes.a.shards: 8-9 is outside 0-7 (shards.count: 8)\ntopology.yaml:7:33: nodes.c.shards: 8-20 is outside 0-7 (shards.count: 8)\ntopology.yaml:7:33: nodes.c.shards: node a also has 2, 8-9; a shard belongs to one node\ntopology.yaml:8:33: nodes.b.shards: node a also has 4-7; a shard belongs to one node"),
    (("4-7", "4-8"), "7:33: nodes.b.shards: 8 is outside 0-7 (shards.count: 8)"),
    (("4-7", "7-4"), "7:33: nodes.b.shards: 7-4 is in the wrong order; write 4-7"),
    (("4-7", "all"), "7:33: nodes.b.shards: 'all' is not a shard or a range such as 0-3"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "line"), CHANGES, ids=[line for _, line in CHANGES])
def test_a_mistake_is_refused_with_its_place_and_what_is_right(
    change: tuple[str, str], line: str
) -> None:
    old, new = change
    assert BASE.count(old) == 1, "the snippet changes one place"
    error = refusal(BASE.replace(old, new))
    assert str(error) == f"topology.yaml:{line}"
    assert "hunter2" not in f"{error}{error.problems!r}{error.hint}"


TEXTS = [
    ("", "1:1: expected keys and values, as `shardctl sandbox new` writes them"),
    ("- a\n", "1:1: expected keys and values, as `shardctl sandbox new` writes them"),
    (b"a: b\nc: \xe9\n", "1:1: byte 8 is not UTF-8; save the file as UTF-8"),
    ("a: \x1b\n", "1:1: character U+001B at byte 3 is not allowed"),
    ("a:\n\tb: 1\n", f"2:1: {TAB}"),
    (f"{BASE}---\n{BASE}", "11:1: quote a value that begins with *, & or !; a file is one document"),
    ("a: b: c\n", "1:5: is not valid YAML: mapping values are not allowed in this context"),
    ("a: 'b\n", "2:1: is not valid YAML: found unexpected end of stream (begun in line 1)"),
    ("a: {b: 1\n", "2:1: is not valid YAML: did not find expected ',' or '}' (begun in line 1)"),
    ("a: [1\nb: 2\n", "2:2: is not valid YAML: did not find expected ',' or ']' (begun in line 1)"),
    ("a: !b!hunter2 c\n", "1:4: quote a value that begins with *, & or !; a file is one document"),
    ("a:\n  b: 1\n c: 2\n", "3:2: is not valid YAML: did not find expected key (begun in line 1)"),
    ("a: *b\n", "1:4: quote a value that begins with *, & or !; a file is one document"),
    ("[" * 100 + "]" * 100, "1:32: more than 30 nested levels"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "line"), TEXTS, ids=[line for _, line in TEXTS])
def test_a_text_that_cannot_be_read_is_one_problem_at_its_place(
    content: str | bytes, line: str
) -> None:
    assert str(refusal(content)) == f"topology.yaml:{line}"


@pytest.mark.parametrize(
    "value",
    ["hunter2", "*hunter2", "!hunter2", "!!hunter2 x", "&hunter2", "x,hunter2", "[hunter2]"],
)
@pytest.mark.parametrize("key", ["password", "sslpassword", "oauth_client_secret"])
def test_however_a_password_is_written_no_message_shows_it(key: str, value: str) -> None:
    error = refusal(BASE.replace("name: app", f"name: app, options: {{{key}: {value}}}"))
    assert "hunter2" not in f"{error}{error.problems!r}{error.hint}"


def test_aliases_that_multiply_are_refused_at_once() -> None:
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    lines += [
        f"{c}: &{c} [{','.join([f'*{p}'] * 9)}]"
        for p, c in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    assert "100000 values" in str(refusal("\n".join(lines)))


def test_every_problem_is_reported_at_once_in_line_order_and_each_once() -> None:
    text = (
        BASE.replace("photos", "[]")
        .replace("name: app", "nme: app")
        .replace("h, port: 1", "h, port: 99999")
        .replace("4-7", "3-8")
        .replace("p.ini", "''")
        + "move: {}\n"
    )
    error = refusal(text)
    assert [" ".join(line.split()[:2]) for line in str(error).splitlines()] == [
        "topology.yaml:1:10: cluster:",
        "topology.yaml:4:1: database.name:",
        "topology.yaml:4:12: database.nme:",
        "topology.yaml:6:22: nodes.a.port:",
        "topology.yaml:7:33: nodes.b.shards:",
        "topology.yaml:7:33: nodes.b.shards:",
        "topology.yaml:9:33: poolers.p.config:",
        "topology.yaml:11:1: move:",
    ]
    assert error.exit_code == 2


@pytest.mark.parametrize("loader", [yaml.SafeLoader, marks._LOADER])
def test_half_of_a_character_is_refused_without_libyaml_too(
    loader: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marks, "_LOADER", loader)
    with pytest.raises(TopologyInvalid):
        parse(BASE.replace("host: h", 'host: "\\ud800"').encode(), FILE)
