"""A group that does something itself where no subcommand is given, as `shardctl migrate` does."""

from __future__ import annotations

from typing import Any

from shardctl.cli.command import AHEAD, ANYWHERE, WITH_DRY_RUN, Command, Group


class Acting(Group):
    """A group one of whose commands has the group's name and runs without a subcommand."""

    @property
    def own(self) -> Own:
        """Give the command that runs where no subcommand is given."""
        command = self.commands[OWN]
        if not isinstance(command, Own):
            raise TypeError(command)
        command.group = self
        return command

    def list_commands(self, ctx: Any) -> list[str]:
        """List the subcommands."""
        return [name for name in super().list_commands(ctx) if name != OWN]

    def has_subcommand(self, words: list[str]) -> bool:
        """Return whether a word among these is neither an option nor the value of one."""
        params = [*self.own.params, *ANYWHERE, *AHEAD, *WITH_DRY_RUN]
        with_value = {opt for one in params if not one.is_flag for opt in one.opts}
        skip = False
        for word in words:
            if skip:
                skip = False
            elif not word.startswith("-"):
                return True
            else:
                skip = word in with_value
        return False


OWN = "own"
"""The name under which an Acting group registers its own command."""


class Own(Command):
    """The command of an Acting group."""

    group: Acting

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, and the subcommands below it."""
        super().format_help(ctx, formatter)
        lines = [
            f"  {ctx.command_path} {name}: {command.get_short_help_str(200)}\n"
            for name in self.group.list_commands(ctx)
            if (command := self.group.get_command(ctx, name)) is not None
        ]
        formatter.write("\nSubcommands:\n" + "".join(lines))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete the subcommands, too."""
        found: list[Any] = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            found += self.group.shell_complete(ctx, incomplete)
        return found
