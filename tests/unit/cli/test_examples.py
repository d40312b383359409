"""The examples that every help ends with: each is one that the command line takes."""

from __future__ import annotations

import shlex
from typing import Any

import typer.main

from shardctl.cli import examples
from shardctl.cli.app import app
from shardctl.cli.options import Settings
from tests import reference


def parse(words: list[str]) -> str:
    """Parse a command line as `main` does, run nothing, and give the command's whole name."""
    ctx: Any = typer.main.get_command(app).make_context("shardctl", words, obj=Settings())
    while ctx._protected_args:
        _, command, rest = ctx.command.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
        ctx = command.make_context(command.name, rest, parent=ctx)
    return str(ctx.command_path)


def test_an_example_parses() -> None:
    for typed in examples.EXAMPLES:
        parsed = typed.replace("fix.sql", "-")  # typer opens what is to be read
        words = shlex.split(parsed.partition(" <")[0].partition(" >")[0])
        assert words[0] == "shardctl"
        assert f"{typed} ".startswith(f"{parse(words[1:])} "), typed


def test_every_command_has_one_to_three() -> None:
    assert {len(examples.of(entry.name)) for entry in reference.entries()} == {1, 2, 3}
