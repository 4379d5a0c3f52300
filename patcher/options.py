"""The options that every command takes, before or after its name."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click


def typed(text: str) -> str:
    """A hint with the target that this command was given, so that what is typed next means the same SGLang."""
    context = click.get_current_context(silent=True)
    options = context.find_object(Options) if context else _given
    if options is None:
        return text
    given = [("--target", options.target), ("--python", options.python), ("--ledger", options.ledger)]
    given += [("--patches", directory) for directory in options.patches]
    words = " ".join(f"{name} {shlex.quote(str(value))}" for name, value in given if value)
    return _COMMAND.sub(lambda found: f"{found[0]} {words}", text) if words else text


# The options of the command at hand, for what is said after click has forgotten them.
_given: Options | None = None
# A command that is suggested: not the program's name in a sentence.
_COMMAND = re.compile(r"\bsglang-patch (?:apply|check|diff|log|repair|revert|show|status|try|verify)(?: [\w:.=-]+)*")


@dataclass
class Options:
    """Their values. `lock_timeout` is in seconds."""

    target: str | None = None
    python: str | None = None
    patches: list[Path] = field(default_factory=list)
    ledger: Path | None = None
    lock_timeout: float = 60.0
    as_json: bool = False


def _set(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep a value that was given; the one nearer to the command's end wins, directories of patches add up."""
    global _given
    options = _given = context.ensure_object(Options)
    name = str(parameter.name)
    if name == "patches":
        options.patches.extend(value)
    elif value is not None and value is not False:
        setattr(options, name, value)


def _options(*, hidden: bool) -> list[click.Option]:
    def option(*names: str, **settings: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_set, hidden=hidden, **settings)

    return [
        option(
            "--target",
            metavar="PATH",
            help="The SGLang to work on: the package, its parent, a checkout or a virtual environment.",
        ),
        option("--python", metavar="EXE", help="The SGLang that this interpreter would import."),
        option(
            "--patches",
            metavar="DIR",
            multiple=True,
            type=click.Path(path_type=Path),
            help="More patches, from a directory of patch files; repeatable.",
        ),
        option(
            "--ledger",
            metavar="DIR",
            type=click.Path(path_type=Path),
            help="Another place for the record than inside the target.",
        ),
        option(
            "--lock-timeout",
            metavar="SECONDS",
            type=click.FloatRange(min=0),
            help="How long to wait for another sglang-patch (60).",
        ),
        option("--json", "as_json", is_flag=True, help="One JSON document on standard output, and nothing else."),
    ]


class Command(click.Command):
    """A command that takes the shared options too, without listing them in its help."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += _options(hidden=True)
        self.options_metavar = "[OPTIONS]"

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, and where the shared options are described."""
        super().format_epilog(context, formatter)
        formatter.write_paragraph()
        formatter.write_text(
            "Also --target, --python, --patches, --ledger, --lock-timeout and --json: see sglang-patch --help."
        )


class Group(click.Group):
    """The group with the shared options; its commands list in the order in which they are declared."""

    command_class = Command

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += _options(hidden=False)

    def list_commands(self, context: click.Context) -> list[str]:
        """The commands as declared, by how often they are wanted."""
        return list(self.commands)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant; an unknown one names its near misses."""
        from patcher.patch import did_you_mean

        if arguments and arguments[0] not in self.commands and not arguments[0].startswith("-"):
            near = did_you_mean(arguments[0], list(self.commands))
            context.fail(f"there is no command {arguments[0]!r}{near}; sglang-patch --help lists them")
        return super().resolve_command(context, arguments)
