"""The command that starts a worker: checks what it was told before anything is started."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from ccs_broker.cli.options import Real, Whole, json_option, url_option, with_options
from ccs_broker.cli.output import echo_json
from ccs_broker.contract.wording import Bounds
from ccs_broker.errors import ConfigurationError, NotFoundError, SetupError
from ccs_broker.settings import require_url
from ccs_workers.cli.model_files import home_option, models_option, prepared_model_file
from ccs_workers.settings import (
    ALLOCATIONS,
    DEFAULT_SLOTS,
    DEFAULT_UNLOAD_IDLE_S,
    LONGEST_S,
    parse_memory,
    parse_modalities,
    parse_parts,
    parse_slots,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ccs_broker.contract import Modality
    from ccs_workers.settings import MemoryWish, SlotPlan

__all__ = ["capacity_options", "require_models", "require_server", "worker_command"]

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?|(GPU|MIG)-[\w/-]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST_PORTS: Final = 65535
_LONGEST_IDLE_S: Final = 30 * 86400.0
_LOG_LEVELS: Final = ("debug", "info", "warning", "error")


def _device(_: click.Context, __: click.Parameter, value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no device; write auto, cpu, mps, cuda, cuda:1 or a UUID")
    return value


def _name(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _NAME.fullmatch(value):
        raise click.BadParameter("1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit")
    return value


def _modalities(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    try:
        return tuple(modality.value for modality in parse_modalities(value)) if value is not None else ()
    except ConfigurationError as error:
        raise click.BadParameter(error.message) from None


def _slots(_: click.Context, __: click.Parameter, value: str) -> SlotPlan:
    try:
        return parse_slots(value)
    except ConfigurationError as error:
        raise click.BadParameter(error.message) from None


def _memory(_: click.Context, __: click.Parameter, value: str) -> MemoryWish:
    try:
        return parse_memory(value)
    except ConfigurationError as error:
        raise click.BadParameter(error.message) from None


def _floors(_: click.Context, __: click.Parameter, value: str | None) -> Mapping[Modality, int]:
    try:
        return parse_parts(value, "floors") if value is not None else {}
    except ConfigurationError as error:
        raise click.BadParameter(error.message) from None


#: How much a worker takes on; `ccs demo` and `ccs up` have the same options.
capacity_options = with_options(
    click.option(
        "--slots",
        default=str(DEFAULT_SLOTS),
        show_default=True,
        callback=_slots,
        metavar="N | LIST",
        help="Jobs running at once; with static allocation also those of each modality: text=8,vision=4.",
    ),
    click.option(
        "--device",
        default="auto",
        show_default=True,
        callback=_device,
        help="auto, cpu, cuda, cuda:1, or the UUID of a GPU or MIG instance.",
    ),
    click.option(
        "--allocation",
        type=click.Choice(ALLOCATIONS),
        default=ALLOCATIONS[0],
        show_default=True,
        help="Share the slots among the modalities, or give each its part.",
    ),
    click.option(
        "--floors",
        callback=_floors,
        metavar="LIST",
        help="Slots of a modality that others don't take, with dynamic allocation: text=2,vision=1.",
    ),
)


@click.command("worker", short_help="Start a worker: it takes jobs from the queues and runs them.")
@click.option(
    "--modalities",
    callback=_modalities,
    metavar="LIST",
    help="Which queues it serves, such as text,vision,audio; without it, all that have a model.",
)
@capacity_options
@with_options(models_option, home_option)
@click.option(
    "--memory",
    default="90%",
    show_default=True,
    callback=_memory,
    metavar="SIZE | SHARE",
    help="Most memory of the device for models and jobs together: 8GiB, or a share of what it has.",
)
@click.option(
    "--unload-idle-seconds",
    "unload_idle_s",
    type=Real(Bounds(least=1, most=_LONGEST_IDLE_S)),
    default=DEFAULT_UNLOAD_IDLE_S,
    show_default=True,
    help="Time after which a model that isn't its modality's default is unloaded if nobody uses it.",
)
@click.option(
    "--name", callback=_name, help="Refused while another live worker has it; without it, one is made up."
)
@click.option(
    "--drain-seconds",
    "drain_s",
    type=Real(Bounds(least=0, most=LONGEST_S)),
    default=0.0,
    show_default=True,
    help="Time that running jobs have to end at shutdown, before another worker continues them.",
)
@click.option(
    "--health-port",
    type=Whole(Bounds(least=0, most=_MOST_PORTS)),
    help="Serve /healthz and /readyz there; 0 takes a free port and logs it.",
)
@click.option(
    "--health-host", default="127.0.0.1", show_default=True, help="The address for that; it has no login."
)
@click.option("--log-level", type=click.Choice(_LOG_LEVELS), default="info", show_default=True)
@with_options(url_option, json_option)
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- CELERY OPTIONS]")
def worker_command(model_file: Path | None, home: Path | None, as_json: bool, **options: Any) -> int:
    """Start a worker, which takes jobs from the queues of its modalities and runs them until it is stopped.

    It needs a running server and a model file, checks both first, and starts neither. Start more workers to
    serve more jobs. On SIGTERM or Ctrl-C it hands the running jobs back, and other workers continue them; a
    second one doesn't wait for --drain-seconds. What follows "--" goes to Celery.

    \b
    ccs worker --url redis://127.0.0.1:6379/0 --models models.toml
    ccs worker --modalities text --slots 8 --device cuda:0
    """
    server = require_url(options.pop("url"))
    models = (model_file or prepared_model_file(home)).absolute()
    options["modalities"] = require_models(models, options["modalities"])
    require_server(server)

    # Celery and all that follows is loaded only when everything that can be wrong has been looked at.
    from ccs_workers.consume.main import run_worker
    from ccs_workers.consume.options import WorkerOptions

    options["loglevel"] = options.pop("log_level")
    with ExitStack() as until_the_end:

        def tell_machines() -> None:
            echo_json({"worker": {"model_file": str(models), **_plain(options)}})
            until_the_end.enter_context(_standard_output_to_errors())

        worker = WorkerOptions(url=server, model_file=models, **options)
        return run_worker(worker, on_checked=tell_machines if as_json else None)


@contextmanager
def _standard_output_to_errors() -> Iterator[None]:
    """Let Celery's banner, and whatever else is written to this process's standard output, go to standard error."""
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:
        # The caller closed one of them.
        yield
        return
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as JSON has them."""
    slots = options["slots"]
    return {
        **options,
        "slots": slots.total,
        "slot_parts": dict(slots.parts),
        "floors": dict(options["floors"]),
        "memory": str(options["memory"]),
    }


def require_models(path: Path, modalities: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modalities to serve, all of the model file for (); each must have a model that is here.

    Raises:
        ConfigurationError: something is missing; the message says what and how to get it.
    """
    from ccs_workers.models import load_model_file

    models = load_model_file(path)
    wanted = modalities or tuple(dict.fromkeys(spec.modality.value for spec in models.specs))
    for modality in wanted:
        try:
            models.default_for(modality)
        except NotFoundError as error:
            raise ConfigurationError(f"{path}: {error.message}") from None
    models = models.for_modalities(wanted)
    for spec in models.specs:
        if spec.path is not None and not spec.path.is_dir():
            raise ConfigurationError(
                f"{path}: model {spec.alias!r}: there is no folder {spec.path}; "
                "'ccs models prepare' makes those of the demo"
            )
    if any(spec.source for spec in models.specs) and importlib.util.find_spec("torch") is None:
        raise SetupError("engines need torch; install it with: pip install 'ccs-workers[worker]'")
    return wanted


def require_server(url: str) -> None:
    """Ask the server for a sign of life.

    Raises:
        QueueUnavailableError: it gives none, or refuses this user.
    """
    from ccs_broker.client import Client

    with closing(Client(url)) as client:
        client.ping()
