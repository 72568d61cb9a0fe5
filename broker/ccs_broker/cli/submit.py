"""The command that submits a job."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from ccs_broker.cli.options import DURATION, PAIR, json_option, url_option, with_options
from ccs_broker.cli.output import echo_json, notes, spinner
from ccs_broker.cli.show import show_outcome, show_stream
from ccs_broker.client import Client
from ccs_broker.contract import QosClass
from ccs_broker.errors import InvalidInputError

if TYPE_CHECKING:
    from ccs_broker.client import JobHandle

__all__ = ["submit_command"]

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)

_request_options = with_options(
    click.option("--image", "images", type=_FILE, multiple=True, help="A picture; may be repeated."),
    click.option("--audio", type=_FILE, help="A sound file."),
    click.option("--model", metavar="ALIAS", help="From the model file; without it, the modality's default."),
    click.option(
        "--qos",
        type=click.Choice([qos.value for qos in QosClass]),
        default=QosClass.STANDARD.value,
        show_default=True,
        help="How urgent it is.",
    ),
    click.option(
        "--deadline", "deadline_s", type=DURATION, help="From now, by which it must be done: 500ms, 5s."
    ),
    click.option(
        "--max-runtime", "max_runtime_s", type=DURATION, help="Longest run of one attempt: 30s, 10m."
    ),
    click.option("--tenant", default="default", show_default=True, help="On whose account it runs."),
    click.option("--idempotency-key", metavar="KEY", help="The same key and request give the same job."),
    click.option("--metadata", type=PAIR, multiple=True, help="Carried along with the job; may be repeated."),
)
_sampling_options = with_options(
    click.option(
        "--max-new-tokens", type=int, default=128, show_default=True, help="Longest text, in tokens."
    ),
    click.option(
        "--temperature", type=float, default=0.0, show_default=True, help="0 always takes the likeliest."
    ),
    click.option("--top-p", type=float, help="Draw from the likeliest tokens that make up this share."),
    click.option("--top-k", type=int, help="Draw from this many of the likeliest tokens."),
    click.option("--seed", type=int, help="The same seed gives the same text."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this string; may be repeated."),
)
_watch_options = with_options(
    click.option("--stream", is_flag=True, help="Show the text as it arrives."),
    click.option("--wait", is_flag=True, help="Wait for the end and print the text."),
    click.option(
        "--timeout", "timeout_s", type=DURATION, help="Give up waiting after this long; the job goes on."
    ),
)


@click.command("submit", short_help="Submit a job; with --stream, show its text as it arrives.")
@click.argument("modality")
@click.argument("prompt", default="")
@_request_options
@_sampling_options
@_watch_options
@with_options(url_option, json_option)
def submit_command(url: str | None, modality: str, prompt: str, **options: Any) -> int:
    """Submit a job and print its id.

    MODALITY is text, vision, audio or fusion. PROMPT may be left out for vision and audio; "-" reads it from
    standard input. With --stream the text is printed as it arrives, with --wait when it is whole; both end
    with 0 if the job succeeded and with 3 if it didn't. --stream --json prints each event as a line, then the
    outcome.

    \b
    ccs submit text "What is the capital of France?" --stream
    ccs submit text - --qos interactive --deadline 5s --wait < question.txt
    ccs submit vision --image page.png --wait
    ccs submit audio --audio clip.wav --stream --json
    """
    stream, wait, timeout_s, as_json = (
        options.pop(name) for name in ("stream", "wait", "timeout_s", "as_json")
    )
    options |= {
        "prompt": _read_prompt() if prompt == "-" else prompt,
        "images": list(options["images"]),
        "stop": list(options["stop"]) or None,
        "metadata": dict(options["metadata"]),
    }
    with closing(Client(url)) as client:
        job = client.submit(modality, **options)
        if stream or wait:
            return _watch(job, stream=stream, timeout_s=timeout_s, as_json=as_json)
        if as_json:
            echo_json({"id": job.id, "modality": modality})
        else:
            click.echo(job.id)
        return 0


def _read_prompt() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise InvalidInputError(f"prompt: standard input isn't {sys.stdin.encoding} text") from None


def _watch(job: JobHandle, *, stream: bool, timeout_s: float | None, as_json: bool) -> int:
    """Show the job's stream or its outcome; the id goes to standard error, for who wants to come back."""
    if not as_json:
        notes().print(Text(f"job {job.id}", style="dim"))
    if stream:
        return show_stream(job, after=0, timeout_s=timeout_s, as_json=as_json)
    with spinner(f"{job.id}: waiting for its end"):
        outcome = job.result(timeout=timeout_s)
    return show_outcome(job.id, outcome, as_json=as_json)
