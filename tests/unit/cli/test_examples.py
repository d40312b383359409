"""The examples that every help ends with: each is one that the command line takes."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer.main

from shardctl.cli.app import app
from shardctl.cli.context import Settings
from shardctl.cli.examples import EXAMPLES
from tests import reference
from tests.fixtures.commands import here

ALL = [(command, typed) for command, found in EXAMPLES.items() for typed, _ in found]


def parse(words: list[str]) -> str:
    """Parse a command line as `main` does, run nothing, and give the command's whole name."""
    ctx: Any = typer.main.get_command(app).make_context("shardctl", words, obj=Settings())
    while ctx._protected_args:
        _, command, rest = ctx.command.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
        ctx = command.make_context(command.name, rest, parent=ctx)
    return str(ctx.command_path)


@pytest.mark.parametrize(("command", "typed"), ALL, ids=[typed for _, typed in ALL])
def test_an_example_parses_and_is_of_its_command(command: str, typed: str) -> None:
    words = shlex.split(typed.partition(" <")[0].partition(" >")[0])
    assert words[0] == "shardctl"
    assert f"{parse(words[1:])} ".startswith(f"{command} ")


def test_every_command_has_two_or_three() -> None:
    assert set(EXAMPLES) == {entry.name for entry in reference.entries()}
    assert {len(found) for found in EXAMPLES.values()} == {2, 3}


@pytest.mark.parametrize("command", ["", "move-shards", "moves", "moves abort", "hosts"])
def test_help_ends_with_them_in_any_terminal(command: str) -> None:
    wide = here(*command.split(), "--help", COLUMNS="120").stdout
    narrow = here("help", *command.split(), COLUMNS="40").stdout
    for typed, purpose in EXAMPLES[f"shardctl {command}".strip()]:
        assert f"  # {purpose}\n  {typed}\n" in wide
        assert f"  # {purpose}\n  {typed}\n" in narrow


def test_a_mistake_shows_how_it_is_done() -> None:
    told = here("encode-id").stderr
    assert told.endswith("for example `shardctl encode-id --time 2026-01-01`\n")


def test_help_of_an_unknown_command_names_the_nearest() -> None:
    done = here("help", "mvoes")
    assert done.returncode == 2
    assert "'moves'" in done.stderr
