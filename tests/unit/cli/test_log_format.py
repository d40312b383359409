"""`--log-format json`: every line on standard error and in the log is an object."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.cli.messages import Messages
from shardctl.cli.output import folded, say, say_error
from shardctl.errors import Refused
from tests.fixtures.commands import here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEYS = ["time", "level", "message", "hint", "code"]


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def messages(*, as_json: bool = True) -> Iterator[Terminal]:
    """Let standard error be the command's, on a terminal; give what is written to it."""
    written = Terminal()
    with contextlib.redirect_stderr(Messages(written, as_json=lambda: as_json)):
        yield written


def test_a_message_has_time_level_and_text() -> None:
    with messages() as stream:
        say("note: 2 nodes")
        say("shardctl: node a: cannot read its journal: refused")
        first, second = objects(stream.getvalue())
        assert list(first) == KEYS
        assert (first["level"], first["message"]) == ("info", "note: 2 nodes")
        assert (second["level"], second["message"]) == (
            "warning",
            "node a: cannot read its journal: refused",
        )
        assert (first["hint"], first["code"]) == (None, None)


def test_an_error_has_its_hint_and_code() -> None:
    with messages() as stream:
        say_error(Refused("map_unwritten", 'no "map"\nhere', hint="run init"))
        [found] = objects(stream.getvalue())
        assert found | {"time": ""} == {
            "time": "",
            "level": "error",
            "message": 'no "map"\nhere',
            "hint": "run init",
            "code": "map_unwritten",
        }


def test_a_line_in_pieces_is_one_object_and_a_question_is_not_held_back() -> None:
    with messages() as stream:
        sys.stderr.write("begin ")
        assert stream.getvalue() == ""
        sys.stderr.write("end\n\n  \nsecond\nthird")
        assert [one["message"] for one in objects(stream.getvalue())] == ["begin end", "second"]
        sys.stderr.flush()
        sys.stderr.flush()
        assert [one["message"] for one in objects(stream.getvalue())][2:] == ["third"]


def test_objects_are_not_folded_or_coloured() -> None:
    with messages() as stream:
        assert not sys.stderr.isatty()
        assert folded("word " * 100) == "word " * 100
        assert stream.getvalue() == ""


def test_text_is_as_it_was_without_the_option() -> None:
    with messages(as_json=False) as stream:
        sys.stderr.write("a\nb")
        assert stream.getvalue() == "a\nb"
        assert sys.stderr.isatty()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--log-format", "json", "status", "--topology", "/nowhere.yaml"),
        ("status", "--topology", "/nowhere.yaml", "--log-format=json"),
        ("status", "--nope", "--log-format", "json"),
        ("stauts", "--log-format", "json"),
    ],
)
def test_errors_are_objects_wherever_the_option_is(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = here(*arguments, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 2
    for one in objects(done.stderr):
        assert list(one) == KEYS
        assert one["level"] == "error"
        assert one["hint"]


def test_the_environment_can_choose_it_and_the_option_wins(tmp_path: Path) -> None:
    given = {"XDG_STATE_HOME": str(tmp_path), "SHARDCTL_LOG_FORMAT": "json"}
    assert objects(here("status", "--topology", "/nowhere.yaml", **given).stderr)
    assert objects(here("--nope", **given).stderr)
    plain = here("--log-format", "text", "status", "--topology", "/nowhere.yaml", **given)
    assert plain.stderr.startswith("shardctl: ")


def test_another_format_is_bad_usage(tmp_path: Path) -> None:
    done = here("status", "--log-format", "xml", XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "shardctl: unknown log format 'xml'\n  choose text or json\n"


def test_the_log_has_the_same_objects_and_no_secret(tmp_path: Path) -> None:
    words = ("--verbose", "--log-format", "json", "--topology", "/nowhere.yaml")
    done = here("sql", "ALTER ROLE ann PASSWORD 'geheim'", *words, XDG_STATE_HOME=str(tmp_path))
    [file] = (tmp_path / "shardctl").iterdir()
    logged = objects(file.read_text())
    assert logged[0]["message"].startswith("shardctl sql ")
    assert (logged[0]["level"], logged[0]["logger"]) == ("info", "shardctl")
    assert "geheim" not in file.read_text() + done.stderr
    assert objects(done.stderr)[: len(logged)] == logged


def test_the_trace_of_a_bug_is_one_object_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardctl.topology.loader.load", lambda _: 1 // 0)
    done = here("status", "--log-format", "json", XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 70
    [file] = (tmp_path / "shardctl").iterdir()
    last = objects(file.read_text())[-1]
    assert last["level"] == "critical"
    assert last["message"].startswith("Traceback")
    assert str(file) in objects(done.stderr)[0]["hint"]
