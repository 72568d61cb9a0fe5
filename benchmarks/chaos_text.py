"""What a chaos run needs of its engine: the model file, how long it loads, undisturbed texts, and ties."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from redis import Redis

from benchmarks.chaos_check import read_record
from ccs_broker import Client
from ccs_broker.contract import Sampling
from ccs_workers.executor.handle import EngineHandle
from ccs_workers.models.modelfile import load_model_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.chaos_check import Record
    from benchmarks.chaos_plan import Plan, Wish
    from ccs_workers.models.spec import ModelSpec
    from ccs_workers.verify.ties import TieJudge

_LOADS: Final = 3

_SIMULATED: Final = """
[models.sim]
modality = "text"
engine = "simulated"
default = true
tokens_per_second = {rate}
crash_on = "{word}"
crash_after_tokens = {after}
[models.sim-vision]
modality = "vision"
engine = "simulated"
tokens_per_second = {rate}
seconds_per_image = 0.1
"""
_TEXT: Final = '[models.text]\nmodality = "text"\nengine = "text"\ndefault = true\npath = "{folder}"\n'


def models_of(plan: Plan, folder: Path, poison_word: str, poison_after: int) -> Path:
    """Write the model file of a run."""
    path = folder / "models.toml"
    if plan.engine == "text":
        from benchmarks.text_engine import FOLDER

        path.write_text(_TEXT.format(folder=FOLDER.expanduser()))
    else:
        path.write_text(_SIMULATED.format(rate=plan.tokens_per_second, word=poison_word, after=poison_after))
    return path


def text_spec(models: Path) -> ModelSpec:
    """The text model of a model file, on the CPU."""
    spec = next(spec for spec in load_model_file(models).specs if spec.modality == "text")
    return replace(spec, device="cpu") if spec.device == "auto" else spec


def engine_load_s(models: Path) -> float:
    """Seconds from the start of the text model's process until it takes jobs; the median of some."""
    times = []
    for _ in range(_LOADS):
        handle = EngineHandle(text_spec(models), lambda _: None, lambda _: None)
        begun = time.perf_counter()
        handle.start()
        times.append(time.perf_counter() - begun)
        handle.close()
    return sorted(times)[_LOADS // 2]


class Reference:
    """The undisturbed runs of the text model, one of each job; the simulated engine needs none."""

    def __init__(self, models: Path) -> None:
        self._models = models
        self._runs: dict[str, Record] = {}
        self._ties: TieJudge | None = None

    def run(self, wishes: Sequence[Wish], url: str) -> list[Wish]:
        """Run each kind of job once, before any fault; the wishes with the texts that came."""
        with Client(url) as client, Redis.from_url(url) as raw:
            for wish in wishes:
                if (key := repr(wish.options)) not in self._runs:
                    job = client.submit(wish.modality, **wish.options)
                    job.result(timeout=600)
                    self._runs[key] = read_record(raw, job.id)
        return [replace(wish, expected=self._runs[repr(wish.options)].text) for wish in wishes]

    @property
    def ids(self) -> set[str]:
        """The jobs of these runs."""
        return {record.id for record in self._runs.values()}

    def begins_at_tie(self, record: Record, wish: Wish) -> bool:
        """Whether a differing answer differs from a token on whose score was as good as another's."""
        from ccs_workers.verify.ties import TieJudge

        if self._ties is None:
            self._ties = TieJudge(text_spec(self._models))
        theirs = self._runs[repr(wish.options)].token_ids
        named = {name: value for name, value in wish.options.items() if name in Sampling.model_fields}
        return self._ties.is_tie(
            wish.options["prompt"],
            Sampling.model_validate(named),
            wish.options.get("seed", 0),
            (record.token_ids, theirs),
        )
