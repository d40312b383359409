"""What lets shardctl-router be installed to be edited: hatch's hook for its wheel.

hatch would copy the files that the wheel takes from outside of its folder, and these copies would
hide the checkout. In their place goes the license; the path to the checkout is `dev-mode-dirs`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class EditableRouter(BuildHookInterface[Any]):  # type: ignore[misc]  # only pip has hatchling
    """Copy no module when the router is installed to be edited."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Choose what is copied."""
        if version == "editable":
            license_file = Path(self.root).parents[1] / "LICENSE"
            folder = f"shardctl_router-{self.metadata.version}.dist-info/licenses"
            build_data["force_include_editable"] = {str(license_file): f"{folder}/LICENSE"}
