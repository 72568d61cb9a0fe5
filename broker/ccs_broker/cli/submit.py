"""The command that submits a job."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from ccs_broker.cli.options import (
    DURATION,
    PAIR,
    Real,
    Whole,
    in_words_of_the_command,
    json_option,
    url_option,
    with_options,
)
from ccs_broker.cli.output import echo_json, notes
from ccs_broker.cli.prompt_use import unused_prompt_note
from ccs_broker.cli.show import show_result, show_stream
from ccs_broker.client import Client
from ccs_broker.contract import Overload, QosClass, Sampling
from ccs_broker.contract.wording import bounds_of
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
        "--deadline",
        "deadline_s",
        type=DURATION,
        help="From now, by which it must be done: 500ms, 5s. A model in the middle of a step stops at its end; one "
        "that hangs is ended about 5 s later.",
    ),
    click.option(
        "--overload",
        type=click.Choice([overload.value for overload in Overload]),
        default=Overload.RELEGATE.value,
        show_default=True,
        help="What becomes of it when it can't be done in time: it runs on leftover capacity, is refused with the "
        "predicted time, or keeps its place.",
    ),
    click.option(
        "--max-runtime",
        "max_runtime_s",
        type=DURATION,
        help="Longest run of one attempt: 30s, 10m; with the same 5 s for a model that hangs.",
    ),
    click.option("--tenant", default="default", show_default=True, help="On whose account it runs."),
    click.option("--idempotency-key", metavar="KEY", help="The same key and request give the same job."),
    click.option("--metadata", type=PAIR, multiple=True, help="Carried along with the job; may be repeated."),
)
_sampling_options = with_options(
    click.option(
        "--max-new-tokens",
        type=Whole(bounds_of(Sampling, "max_new_tokens")),
        default=128,
        show_default=True,
        help="Longest text, in tokens.",
    ),
    click.option(
        "--temperature",
        type=Real(bounds_of(Sampling, "temperature")),
        default=0.0,
        show_default=True,
        help="0 always takes the likeliest.",
    ),
    click.option(
        "--top-p",
        type=Real(bounds_of(Sampling, "top_p")),
        help="Draw from the likeliest tokens that make up this share.",
    ),
    click.option(
        "--top-k",
        type=Whole(bounds_of(Sampling, "top_k")),
        help="Draw from this many of the likeliest tokens.",
    ),
    click.option(
        "--repetition-penalty",
        type=Real(bounds_of(Sampling, "repetition_penalty")),
        default=1.0,
        show_default=True,
        help="Over 1 makes tokens less likely that prompt or answer have already.",
    ),
    click.option(
        "--seed", type=Whole(bounds_of(Sampling, "seed")), help="The same seed gives the same text."
    ),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this string; may be repeated."),
)
_watch_options = with_options(
    click.option("--stream", is_flag=True, help="Show the text as it arrives."),
    click.option("--wait", is_flag=True, help="Wait for the end and print the text."),
    click.option(
        "--timeout",
        "timeout_s",
        type=DURATION,
        help="Give up after so long without news (5s, 2m); the job goes on. Without it, only a server that is away "
        "for 5 minutes ends the waiting.",
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
    standard input. Many vision and audio models take no prompt, those of the demo among them: they read a
    picture or write down what is said, whatever PROMPT says; a note on standard error tells so.

    With --stream the text is printed as it arrives, with --wait when it is whole; both end with 0 if the job
    succeeded and with 3 if it didn't. --stream --json prints each event as a line, then the outcome. What the
    job waits for, such as a worker or a server that is away, is said on standard error.

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
        try:
            job = client.submit(modality, **options)
        except InvalidInputError as error:
            raise in_words_of_the_command(error) from None
        if note := unused_prompt_note(client, modality, options["model"], options["prompt"]):
            notes().print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
        if stream or wait:
            return _watch(client, job, stream=stream, timeout_s=timeout_s, as_json=as_json)
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


def _watch(client: Client, job: JobHandle, *, stream: bool, timeout_s: float | None, as_json: bool) -> int:
    """Show the job's stream or its outcome; the id goes to standard error, for who wants to come back."""
    if not as_json:
        notes().print(Text(f"job {job.id}", style="dim"))
    if stream:
        return show_stream(client, job, after=0, timeout_s=timeout_s, as_json=as_json)
    return show_result(client, job, timeout_s=timeout_s, as_json=as_json)
