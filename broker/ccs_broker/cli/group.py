"""The command `ccs` itself: finds its subcommands when they are needed, and turns errors into exit codes."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import click

from ccs_broker.cli.failures import exit_code_of
from ccs_broker.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["CcsGroup", "ccs"]

ENTRY_POINT_GROUP: Final = "ccs.commands"

_BASE: Final = {
    "submit": "ccs_broker.cli.submit:submit_command",
    "stream": "ccs_broker.cli.jobs:stream_command",
    "result": "ccs_broker.cli.jobs:result_command",
    "status": "ccs_broker.cli.jobs:status_command",
    "cancel": "ccs_broker.cli.jobs:cancel_command",
    "reprioritize": "ccs_broker.cli.jobs:reprioritize_command",
    "queues": "ccs_broker.cli.fleet:queues_command",
    "workers": "ccs_broker.cli.fleet:workers_command",
    "tenants": "ccs_broker.cli.tenants:tenants_command",
    "dead": "ccs_broker.cli.dead:dead_command",
    "simulate": "ccs_broker.cli.simulate:simulate_command",
}


class CcsGroup(click.Group):
    """A group whose commands are imported one at a time, so that none pays for another's libraries."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_BASE, *sorted(_joined())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _BASE:
            module, _, attribute = _BASE[cmd_name].partition(":")
            return cast("click.Command", getattr(import_module(module), attribute))
        entry = _joined().get(cmd_name)
        return _load(entry) if entry is not None else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in two sections: those of a client, and those that joined."""
        joined = sorted(_joined())
        for title, names in (("Jobs and fleet", list(_BASE)), ("Workers and the whole system", joined)):
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                if command is not None and not command.hidden:
                    rows.append((name, command.get_short_help_str(limit=90)))
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Run and exit: the command's own status, or what `failures` makes of its error."""
        arguments = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            status = super().main(arguments, *rest, **extra)
        except Exception as error:
            # The outermost edge: known errors become one line, unknown ones keep their traceback.
            command = next((word for word in arguments if not word.startswith("-")), "")
            status = exit_code_of(error, as_json="--json" in arguments, command=command)
            if status is None:
                raise
        sys.exit(status if isinstance(status, int) else 0)


def _joined() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name not in _BASE}


def _load(entry: EntryPoint) -> click.Command:
    """Import a joined command; one that can't be imported stays in the list and says why when called."""
    try:
        return cast("click.Command", entry.load())
    except ImportError as error:
        return _unavailable(entry.name, error.name or "a library")


def _unavailable(name: str, library: str) -> click.Command:
    remedy = f"it needs {library}; install it with: pip install 'ccs-workers[worker]'"

    def refuse() -> NoReturn:
        raise SetupError(f"'ccs {name}' isn't available: {remedy}")

    return click.Command(
        name,
        callback=cast("Callable[[], None]", refuse),
        short_help=f"(not available: needs {library})",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        add_help_option=False,
    )


@click.group(cls=CcsGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("ccs-workers"), prog_name="ccs")
def ccs() -> None:
    """Run text, vision and audio prompts at once on scarce devices, through Redis and Celery.

    \b
    ccs demo                               see the whole system run on this machine
    ccs up                                 the same, staying up
    ccs submit text "Why is the sky blue?" --stream
    ccs queues

    Commands find their server in --url or CCS_REDIS_URL. Each takes --json for machines.

    \b
    Each ends with
      0    done
      1    it failed: no server, no such job, no news in time, a library that is missing
      2    what it was told is wrong: usage, a value, a variable, the model file
      3    the job that it shows did not succeed
      130  interrupted (128 + the signal's number, where another signal ended it)
    """
