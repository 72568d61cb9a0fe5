"""What a chaos run does, drawn from its seed alone: the jobs with the texts they must end with, and the faults."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from PIL import Image

from ccs_broker.contract import Sampling
from ccs_workers.engines.protocol import EngineJob
from ccs_workers.engines.simulated.words import digest_of, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The word that makes the simulated engine kill its process; no other prompt holds it.
POISON_WORD: Final = "poison"
POISON_AFTER_TOKENS: Final = 3
_VISION_SHARE: Final = 0.05
_TEXT_PROMPTS: Final = (
    "Tell me about the sea.", "What is a cedar?", "Name three rivers.", "Why is the sky blue?",
    "How does bread rise?", "What do owls eat?", "Describe a harbor.", "Who was Ada Lovelace?",
)  # fmt: skip


class FaultKind(StrEnum):
    """What is done to the system, by the name it has in the table."""

    WORKER_KILL = "worker SIGKILL"
    FREEZE = "worker SIGSTOP"
    DRAIN = "worker SIGTERM"
    ENGINE_KILL = "engine SIGKILL"
    CONNECTIONS = "CLIENT KILL"
    SERVER = "server SIGKILL"
    POISON = "poison job"
    CANCEL = "cancel"


#: Shares of the faults; every kind comes at least once.
WEIGHTS: Final[Mapping[FaultKind, int]] = {
    FaultKind.WORKER_KILL: 20,
    FaultKind.FREEZE: 10,
    FaultKind.DRAIN: 10,
    FaultKind.ENGINE_KILL: 15,
    FaultKind.CONNECTIONS: 20,
    FaultKind.SERVER: 5,
    FaultKind.POISON: 5,
    FaultKind.CANCEL: 15,
}
#: Faults that stock Celery can be given as well.
STOCK_FAULTS: Final = frozenset(
    {FaultKind.WORKER_KILL, FaultKind.FREEZE, FaultKind.DRAIN, FaultKind.CONNECTIONS, FaultKind.SERVER}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The size of a run, and the times that its bars refer to."""

    jobs: int = 200
    faults: int = 20
    workers: int = 4
    seed: int = 1
    #: "simulated", or "text" for the prepared text model.
    engine: str = "simulated"
    #: Chains of three, and as many chords of eight.
    canvases: int = 5
    most_s: float = 1800.0
    #: So many that one worker alone has room for all open jobs: recovery is measured, not queueing.
    slots: int = 64
    tokens_per_second: float = 20.0
    lease_s: float = 2.0
    sweep_s: float = 0.5
    #: Jobs under way at once, which sets the pace of the submission.
    open_jobs: int = 32

    @property
    def step_s(self) -> float:
        """Seconds of one step of the simulated engine."""
        return 1.0 / self.tokens_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A job to submit, and the text of its undisturbed run (filled in later for the text model)."""

    number: int
    modality: str
    options: Mapping[str, Any] = field(repr=False)
    expected: str = ""
    poison: bool = False

    @property
    def tokens(self) -> int:
        """Tokens asked for."""
        return int(self.options["max_new_tokens"])


def simulated_text(prompt: str, seed: int, tokens: int, images: tuple[bytes, ...] = ()) -> str:
    """The answer of the simulated engine to a job, however often it is disturbed."""
    job = EngineJob(key="", prompt=prompt, sampling=Sampling(), seed=seed, images=images)
    return text_of(digest_of(job), tokens)


def poison(number: int) -> Wish:
    """A job that kills its engine whenever it gets beyond a few tokens."""
    options = {"prompt": f"{POISON_WORD} {number}", "max_new_tokens": 20, "seed": number}
    return Wish(number=number, modality="text", options=options, poison=True)


def make_wishes(plan: Plan) -> list[Wish]:
    """All jobs of a run, in the order of their submission."""
    chance = random.Random(plan.seed)
    if plan.engine == "text":
        return [_text_wish(number) for number in range(plan.jobs)]
    images = tuple(_picture(shade) for shade in range(3))
    return [_simulated_wish(number, chance, images) for number in range(plan.jobs)]


def _simulated_wish(number: int, chance: random.Random, images: tuple[bytes, ...]) -> Wish:
    tokens, seed = chance.randint(5, 40), chance.randrange(1 << 31)
    prompt = f"job {number}"
    qos = chance.choice(("realtime", "interactive", "standard", "standard", "batch"))
    options: dict[str, Any] = {"prompt": prompt, "max_new_tokens": tokens, "seed": seed, "qos": qos}
    if chance.random() >= _VISION_SHARE:
        expected = simulated_text(prompt, seed, tokens)
        return Wish(number=number, modality="text", options=options, expected=expected)
    chosen = tuple(chance.sample(images, 2))
    options["images"] = list(chosen)
    expected = simulated_text(prompt, seed, tokens, chosen)
    return Wish(number=number, modality="vision", options=options, expected=expected)


def _text_wish(number: int) -> Wish:
    """One of twice eight jobs, greedy and seeded, so that few undisturbed runs tell all texts."""
    prompt = _TEXT_PROMPTS[number % len(_TEXT_PROMPTS)]
    seeded = number // len(_TEXT_PROMPTS) % 2
    options: dict[str, Any] = {"prompt": prompt, "max_new_tokens": 32, "seed": 7}
    if seeded:
        options |= {"temperature": 0.8, "top_p": 0.95}
    return Wish(number=number, modality="text", options=options)


def _picture(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (2, 2), 80 * shade).save(file, "PNG")
    return file.getvalue()


def make_faults(plan: Plan, *, stock: bool = False) -> list[FaultKind]:
    """All faults of a run, in order: every kind at least once, else by weight."""
    kinds = [kind for kind in FaultKind if (not stock or kind in STOCK_FAULTS)]
    if plan.engine == "text":
        kinds.remove(FaultKind.POISON)
    chance = random.Random(plan.seed + 1)
    faults = kinds[: plan.faults]
    faults += chance.choices(kinds, [WEIGHTS[kind] for kind in kinds], k=plan.faults - len(faults))
    chance.shuffle(faults)
    return faults
