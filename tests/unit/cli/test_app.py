"""The entry: start-up, the list of commands, the boundary of errors."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from shardctl.cli import app as entry
from shardctl.errors import Interrupted, Problems, ShardctlError, Unfinished, UsageError

if TYPE_CHECKING:
    from pathlib import Path

HEAVY = {"psycopg", "fabric", "pydantic", "jinja2", "yaml", "rich"}


def loaded(code: str, directory: Path) -> set[str]:
    """Give the heavy packages that a Python program has loaded at its end."""
    program = f"{code}\nimport sys; print(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=directory
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.fixture(scope="module")
def by_typer(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Give what typer loads without us."""
    return loaded(
        "import typer\napp = typer.Typer()\n@app.command()\ndef f(): pass\n"
        "try: app([])\nexcept SystemExit: print()",
        tmp_path_factory.mktemp("typer"),
    )


def of(*words: str) -> str:
    return f"from shardctl.cli.app import main\ntry: main({words!r})\nexcept SystemExit: print()\n"


def test_start_up_loads_nothing_heavy_beyond_typer_itself(
    tmp_path: Path, by_typer: set[str]
) -> None:
    assert loaded(of("decode-id", "1"), tmp_path) <= by_typer
    assert HEAVY - by_typer >= {"psycopg", "fabric", "jinja2", "yaml"}


def test_the_help_loads_no_command_and_not_even_rich(tmp_path: Path) -> None:
    modules = "import sys\nassert not [m for m in sys.modules if m.endswith('cli.verify')]"
    assert loaded(of("--help") + modules, tmp_path) == set()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ShardctlError("a", hint="b"), 1),
        (UsageError("a", hint="b"), 2),
        (Unfinished("a", hint="b"), 3),
        (Interrupted("a", hint="b"), 130),
        (Problems([ShardctlError("x"), Unfinished("a", hint="b")]), 3),
    ],
)
def test_an_error_is_a_line_and_a_hint_and_an_exit_code(
    error: ShardctlError,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert leave_with(error, monkeypatch) == code
    assert capsys.readouterr().err.endswith("shardctl: a\n  b\n")


def test_ctrl_c_is_130_and_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leave_with(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err.count("\n") == 1


def test_a_bug_is_70_and_its_traceback_is_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert leave_with(ZeroDivisionError("of mine"), monkeypatch) == 70
    told = capsys.readouterr().err
    [log] = (tmp_path / "shardctl").glob("*.log")
    assert "ZeroDivisionError" in told
    assert str(log) in told
    assert "Traceback" not in told
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_no_password_of_a_statement_gets_into_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    statement = "ALTER ROLE app PASSWORD 'it''s mine'"
    subprocess.run(
        [sys.executable, "-m", "shardctl", "--topology", "none", "sql", statement], check=False
    )
    [log] = (tmp_path / "shardctl").glob("*.log")
    assert "ALTER ROLE app PASSWORD" in log.read_text()
    assert "mine" not in log.read_text()


def leave_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> object:
    """Run a command that raises `error`; give the exit code."""
    from shardctl.cli import ids
    from shardctl.ids import times

    def fail(text: str) -> int:
        del text
        raise error

    monkeypatch.setattr(times, "parse", fail)
    assert ids.encode_id_app
    with pytest.raises(SystemExit) as left:
        entry.main(["encode-id", "--time", "2020-01-01"])
    return left.value.code
