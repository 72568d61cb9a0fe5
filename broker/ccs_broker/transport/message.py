"""Celery messages as the ledger sees them: checked on the way in, made up or completed on the way out; pure."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_OID, uuid5

from kombu.utils.json import dumps, loads

from ccs_broker import topology
from ccs_broker.contract.build import job_from_wire
from ccs_broker.contract.job import is_job_id
from ccs_broker.contract.limits import MAX_LIFETIME_S
from ccs_broker.contract.wire import dump_json
from ccs_broker.errors import InvalidInputError
from ccs_broker.ledger import Entry
from ccs_broker.ledger.entries import entry_of as job_entry
from ccs_broker.policy import BALANCED
from ccs_broker.priority import qos_of_celery_priority, urgency

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccs_broker.contract import Modality
    from ccs_broker.errors import CcsError
    from ccs_broker.ledger import Claim
    from ccs_broker.policy import Policy

#: Name of the Celery task that runs a job.
RUN_TASK: Final = "ccs.run"
#: Header that carries the fencing token to the task.
ATTEMPT_HEADER: Final = "ccs_attempt"
#: Longest foreign message that is looked at.
MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
#: What Celery calls the two numbers of a time limit.
_TIMELIMIT: Final = ("hard", "soft")
#: What a message's embed may hold that is to be done after its task.
LINKS: Final = ("callbacks", "errbacks", "chain", "chord")
_SHOWN: Final = ("argsrepr", "kwargsrepr", "shadow")

Message = dict[str, Any]


class MalformedMessageError(InvalidInputError):
    """Not a Celery message of protocol 2; the text names what is wrong and holds nothing of the body."""


def parse_message(raw: bytes) -> Message:
    """Decode and check the envelope of a message as it lies on a list.

    Raises:
        MalformedMessageError: it isn't one.
    """
    if len(raw) > MAX_MESSAGE_BYTES:
        raise MalformedMessageError(f"message of {len(raw)} bytes, over the limit of {MAX_MESSAGE_BYTES}")
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise MalformedMessageError("not JSON") from error
    if not isinstance(message, dict):
        raise MalformedMessageError("not a JSON object")
    return check_message(message)


def check_message(message: Message) -> Message:
    """Check the envelope of a decoded message and return it.

    Raises:
        MalformedMessageError: it isn't a Celery message of protocol 2.
    """
    for key, kind in (("headers", dict), ("properties", dict), ("body", str)):
        if not isinstance(message.get(key), kind):
            raise MalformedMessageError(f"{key!r} is missing or of the wrong type")
    headers, properties = message["headers"], message["properties"]
    for key in ("task", "id"):
        if not isinstance(headers.get(key), str) or not headers[key]:
            raise MalformedMessageError(f"header {key!r} is missing (Celery's protocol 2 is needed)")
    if not is_job_id(headers["id"]):
        raise MalformedMessageError("header 'id' isn't a job id")
    if message.get("content-type") != "application/json":
        raise MalformedMessageError("content type isn't application/json")
    if properties.get("body_encoding") not in (None, "base64"):
        raise MalformedMessageError("unknown body encoding")
    if not isinstance(properties.get("delivery_info", {}), dict):
        raise MalformedMessageError("'delivery_info' isn't an object")
    _check_timelimit(headers.get("timelimit"))
    return message


def waited_for(raw: bytes) -> str:
    """Id of the task whose result the producer of a malformed message may be waiting for; empty if it has none."""
    if len(raw) > MAX_MESSAGE_BYTES:
        return ""
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(message, dict):
        return ""
    parts = (message.get("headers"), message.get("properties"))
    headers, properties = (part if isinstance(part, dict) else {} for part in parts)
    # Celery writes it in both places; in those of its protocol 1 in the second only.
    task_id = headers.get("id") or properties.get("correlation_id")
    if headers.get("ignore_result") is True or not isinstance(task_id, str):
        return ""
    return task_id if is_job_id(task_id) else ""


def _check_timelimit(value: object) -> None:
    if value is None:
        return
    if not (
        isinstance(value, list)
        and len(value) == len(_TIMELIMIT)
        and all(v is None or isinstance(v, int | float) for v in value)
    ):
        raise MalformedMessageError("header 'timelimit' isn't a pair of numbers")


def decode_body(message: Message) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Arguments, keyword arguments and embed of a checked message.

    Raises:
        MalformedMessageError: the body isn't these three.
    """
    try:
        body: str | bytes = message["body"]
        if message["properties"].get("body_encoding") == "base64":
            body = base64.b64decode(body, validate=True)
        args, kwargs, embed = json.loads(body)
    except (ValueError, TypeError, binascii.Error, RecursionError) as error:
        raise MalformedMessageError("the body isn't [args, kwargs, embed]") from error
    if not (isinstance(args, list) and isinstance(kwargs, dict) and isinstance(embed, dict)):
        raise MalformedMessageError("the body isn't [args, kwargs, embed]")
    return args, kwargs, embed


def check_body(message: Message) -> None:
    """Check what a worker will have to read; for messages of producers that we don't know.

    Raises:
        MalformedMessageError: the body isn't ``[args, kwargs, embed]``.
    """
    decode_body(message)


def _encode(message: Message) -> bytes:
    encoded: str = dumps(message)
    return encoded.encode()


def _until(value: object, now: datetime) -> float | None:
    """Seconds from now to an absolute time of a producer; None where none is given."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise MalformedMessageError("'eta' or 'expires' isn't a time")
    try:
        when = datetime.fromisoformat(value)
    except ValueError as error:
        raise MalformedMessageError("'eta' or 'expires' isn't a time") from error
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return (when - now).total_seconds()


def _previous_text(previous: object) -> str:
    """Text of a predecessor in a chain: of one outcome, or of a group's outcomes, a line each."""
    if isinstance(previous, dict):
        text = previous.get("text")
        return text if isinstance(text, str) else ""
    if isinstance(previous, list):
        return "\n".join(_previous_text(one) for one in previous)
    return previous if isinstance(previous, str) else ""


def _spec_of(args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The job's fields in a call of ``ccs.run``: ``(spec)``, or ``(previous, spec)`` inside a canvas."""
    spec = args[-1] if args else kwargs.get("job")
    if not isinstance(spec, dict):
        raise InvalidInputError("ccs.run takes one object with the job's fields, such as {'prompt': '...'}")
    if len(args) > 1 and isinstance(spec.get("prompt"), str):
        spec = {**spec, "prompt": spec["prompt"].replace("{previous.text}", _previous_text(args[0]))}
    return spec


def shown_args(job_id: str, modality: str) -> list[dict[str, str]]:
    """What Celery, its events and Flower see of a job: never a prompt, never media."""
    return [{"job": job_id, "modality": modality}]


def has_links(message: bytes) -> bool:
    """Whether Celery has something to do after the job: a chain, a link, a chord's part."""
    if not message:
        return False
    _, _, embed = json.loads(json.loads(message)["body"])
    return any(embed.get(name) for name in LINKS)


def _name_links(value: object, job_id: str, path: str) -> None:
    """Give every task that follows a job an id of its own that any repetition gives again.

    Celery draws a new id whenever it applies a link, so a link applied twice would run twice.
    """
    if isinstance(value, list):
        for index, item in enumerate(value):
            _name_links(item, job_id, f"{path}.{index}")
    elif isinstance(value, dict):
        if isinstance(value.get("task"), str) and isinstance(value.get("options"), dict):
            value["options"].setdefault("task_id", str(uuid5(NAMESPACE_OID, f"{job_id}{path}")))
        for name in ("kwargs", "tasks", "body", *LINKS):
            _name_links(value.get(name), job_id, f"{path}.{name}")


def entry_of(
    message: Message, queue: str, now: datetime, *, policy: Policy = BALANCED
) -> tuple[Entry, dict[str, bytes]]:
    """Turn a checked Celery message into a ledger entry and the media that came inline with it.

    Args:
        message: as :func:`parse_message` returns it.
        queue: the ledger queue it was sent to.
        now: the clock that wrote ``eta`` and ``expires`` in the producer, or the broker's at intake.
        policy: the fleet's scheduling policy.

    Raises:
        MalformedMessageError: the body or a time can't be read.
        InvalidInputError: it calls ``ccs.run`` with a job that isn't valid.
    """
    headers = message["headers"]
    delay_s = max(0.0, _until(headers.pop("eta", None), now) or 0.0)
    expires_s = _until(headers.pop("expires", None), now)
    qos = qos_of_celery_priority(message["properties"].get("priority"))
    expire_ms = int(min(MAX_LIFETIME_S, MAX_LIFETIME_S if expires_s is None else expires_s) * 1000)
    common: dict[str, Any] = {"id": headers["id"], "queue": queue, "delay_ms": int(delay_s * 1000)}
    if headers["task"] != RUN_TASK:
        entry = Entry(
            **common,
            kind="task",
            message=_encode(message),
            urgency=urgency(qos, None, policy=policy),
            expire_ms=max(1, expire_ms),
        )
        return entry, {}
    args, kwargs, embed = decode_body(message)
    modality = topology.modality_of(queue)
    job, blobs = job_from_wire(
        _spec_of(args, kwargs), job_id=headers["id"], modality_default=modality, qos_default=qos
    )
    if job.modality is not modality:
        raise InvalidInputError(f"a job of modality {job.modality.value} was sent to the queue {queue}")
    base = job_entry(job, payload=dump_json(job), policy=policy)
    changed = replace(
        base,
        message=stored_message(message, job.id, modality, embed),
        celery=True,
        delay_ms=common["delay_ms"],
        expire_ms=max(1, min(base.expire_ms, expire_ms)),
    )
    return changed, blobs


def stored_message(message: Message, job_id: str, modality: Modality, embed: dict[str, Any]) -> bytes:
    """A message as the ledger keeps it: without what the job says, and with an id for every task that follows it."""
    _name_links(embed, job_id, "")
    return _encode(_hide(message, shown_args(job_id, modality.value), embed))


def _hide(message: Message, args: list[Any], embed: dict[str, Any]) -> Message:
    headers = {key: value for key, value in message["headers"].items() if key not in _SHOWN}
    properties = {k: v for k, v in message["properties"].items() if k != "body_encoding"}
    return {**message, "headers": headers, "properties": properties, "body": json.dumps([args, {}, embed])}


def refused_entry(message: Message, queue: str, error: CcsError, *, policy: Policy = BALANCED) -> Entry:
    """Entry for a foreign job that isn't valid: a worker ends it with the error, so that its producer learns."""
    payload = {"invalid": {"code": error.code, "message": error.message}}
    hidden = _hide(message, shown_args(message["headers"]["id"], topology.modality_of(queue).value), {})
    return Entry(
        id=message["headers"]["id"],
        queue=queue,
        urgency=urgency(qos_of_celery_priority(None), None, policy=policy),
        message=_encode(hidden),
        payload=json.dumps(payload).encode(),
        celery=True,
    )


def delivery_of(claim: Claim) -> Message:
    """The message Celery receives for a claim: the stored one, or one made up for a job of our own client."""
    modality: Modality = topology.modality_of(claim.queue)
    if claim.message:
        message: Message = loads(claim.message)
    else:
        message = {
            "body": json.dumps([shown_args(claim.id, modality.value), {}, {}]),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"lang": "py", "task": RUN_TASK, "id": claim.id, "root_id": claim.id, "origin": "ccs"},
            "properties": {"correlation_id": claim.id},
        }
    headers: dict[str, Any] = message["headers"]
    headers[ATTEMPT_HEADER] = claim.attempt
    if headers["task"] == RUN_TASK:
        headers["argsrepr"] = repr(tuple(shown_args(claim.id, modality.value)))
        headers["kwargsrepr"] = "{}"
    message["properties"] |= {
        "delivery_tag": topology.run_entry(claim.id, claim.attempt),
        "delivery_info": {"exchange": "", "routing_key": claim.queue, "redelivered": claim.attempt > 1},
    }
    return message


def dead_letter(queue: str, reason: str, raw: bytes, limit_bytes: int) -> str:
    """A dead letter as JSON: where it lay, why it can't be understood, and its first bytes, base64."""
    letter: Mapping[str, object] = {
        "queue": queue,
        "reason": reason,
        "size_bytes": len(raw),
        "raw": base64.b64encode(raw[:limit_bytes]).decode(),
    }
    return json.dumps(letter)
