"""Starts a worker from the command line's options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from celery.bin.celery import celery
from redis import Redis

from ccs_workers.consume.app import build_app
from ccs_workers.consume.name_check import require_free_name
from ccs_workers.consume.runtime import node_name, serving
from ccs_workers.scheduling.allocation import allocation_of
from ccs_workers.settings import (
    WorkerSettings,
    allows_eviction,
    ledger_settings_from_environment,
    parse_modalities,
    stall_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccs_workers.consume.options import WorkerOptions


#: Longest wait for the server when it is asked who has a name, in seconds.
_PATIENCE_S: Final = 5.0


def run_worker(options: WorkerOptions, on_checked: Callable[[], None] | None = None) -> int:
    """Run a worker until it is told to stop; returns its exit status.

    ``on_checked`` is called once everything that can be wrong before the start was looked at.

    Raises:
        ConfigurationError: the model file or an option is wrong, or another worker has this name; nothing was started.
    """
    settings = WorkerSettings(
        url=options.url,
        model_file=options.model_file,
        modalities=parse_modalities(",".join(options.modalities)) if options.modalities else (),
        slots=options.slots.total,
        slot_parts=options.slots.parts,
        floors=options.floors,
        device=options.device,
        memory=options.memory,
        unload_idle_s=options.unload_idle_s,
        allocation=options.allocation,
        name=options.name,
        drain_s=options.drain_s,
        stall_s=stall_seconds(),
        allow_eviction=allows_eviction(),
        health_host=options.health_host,
        health_port=options.health_port,
        ledger=ledger_settings_from_environment(),
    )
    allocation_of(settings, serving(settings).modalities)
    app = build_app(settings)
    name = node_name(settings.name)
    # A name of our own making is unique.
    if settings.name is not None:
        _require_free_name(settings, name)
    if on_checked is not None:
        on_checked()
    arguments = [
        "worker",
        "--pool=threads",
        f"--concurrency={settings.slots}",
        f"--hostname={name}",
        f"--loglevel={options.loglevel}",
        # Workers learn nothing from each other that the ledger doesn't hold, and waiting for it costs a second.
        "--without-mingle",
        "--without-gossip",
        *options.extra,
    ]
    # As Celery's own app.worker_main() does, which drops the exit status on its way.
    celery.params[0].default = app
    try:
        status = celery.main(args=arguments, standalone_mode=False)
    except SystemExit as end:
        status = end.code
    return status if isinstance(status, int) else int(status is not None)


def _require_free_name(settings: WorkerSettings, name: str) -> None:
    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    with Redis.from_url(
        settings.url, socket_timeout=_PATIENCE_S, socket_connect_timeout=_PATIENCE_S
    ) as redis:
        require_free_name(redis, name, settings.report_ttl_s, say)
