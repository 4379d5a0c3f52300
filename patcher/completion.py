"""What the shell can complete: patch ids and profiles."""

from __future__ import annotations

from typing import Any

import click


class PatchId(click.ParamType[str]):
    """A patch id, which the shell can complete."""

    name = "id"

    def shell_complete(self, context: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """The ids that begin so, each with what it is for."""
        from click.shell_completion import CompletionItem

        from patcher.catalog import collect

        return [
            CompletionItem(name, help=one.summary) for name, one in collect().items() if name.startswith(incomplete)
        ]


class ProfileName(PatchId):
    """A profile of any patch, which the shell can complete."""

    name = "name"

    def shell_complete(self, context: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """The profiles that begin so, each with what it is for."""
        from click.shell_completion import CompletionItem

        from patcher.catalog import collect

        profiles = {name: profile for one in collect().values() for name, profile in one.profiles.items()}
        return [CompletionItem(name, help=one.summary) for name, one in profiles.items() if name.startswith(incomplete)]
