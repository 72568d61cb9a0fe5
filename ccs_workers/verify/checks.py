"""The jobs that are run: those that are compared, those made to fail, and the neighbours beside them."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ccs_broker.contract import Modality, Sampling
from ccs_workers.engines.protocol import EngineJob, Resume
from ccs_workers.verify.records import Check
from ccs_workers.verify.text_jobs import Kind, kinds_that_fit, neighbour_kind, sampling_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from ccs_workers.engines.protocol import EngineInfo
    from ccs_workers.models.spec import ModelSpec
    from ccs_workers.verify.canaries import Aviary

__all__ = ["JobMaker"]

#: What the simulated engine says it runs on.
SIMULATED_DEVICE: Final = "simulated"
_NOTHING: Final = EngineJob(key="", prompt="", sampling=Sampling(), seed=0)

#: Seeds are drawn below this.
_SEEDS: Final = 1 << 40
#: One of so many neighbours is cancelled on its way, or claims what it never said.
_CANCELLED_OF: Final = 4
_REFUSED_OF: Final = 8
#: What no job of ours has said, so that no engine may go on behind it.
_STRANGE: Final = Resume(text="\u2603 never said", token_ids=(1,), progress=({"never": "said"},))


class JobMaker:
    """Makes the jobs of one model; the same seed gives the same ones."""

    def __init__(self, spec: ModelSpec, info: EngineInfo, random: Random, aviary: Aviary) -> None:
        self._alias = spec.alias
        self._modality = spec.modality
        self._context_tokens = info.context_tokens
        self._random = random
        self._aviary = aviary
        # The simulated engine knows neither stop strings nor half characters.
        self._real = info.device != SIMULATED_DEVICE
        self._neighbours = 0

    def jobs(self, count: int) -> list[Check]:
        """The jobs that are compared: ``count`` good ones, and some that every engine or most must refuse."""
        good = [self._good(number) for number in range(count)]
        strange = self._named("never said before", lambda word: self._plain(word, 0, _STRANGE))
        return [*good, *self._invalid(), replace(strange, must_fail=True)]

    def neighbours(self, count: int) -> list[Check]:
        """Jobs beside them, others each time: some fail, some are cancelled on their way."""
        return [self._neighbour(number) for number in range(count)]

    def _good(self, number: int) -> Check:
        if self._modality in {Modality.TEXT, Modality.FUSION}:
            kinds = kinds_that_fit(self._context_tokens)
            kind = kinds[number % len(kinds)]
            return self._named(f"{number + 1}: {kind.title}", lambda word: self._text(kind, word))
        if self._modality is Modality.VISION:
            pictures = _room("pictures")
            title = pictures.TITLES[number % len(pictures.TITLES)]
            return self._named(
                f"{number + 1}: {title}",
                lambda word: self._media(word, images=pictures.picture_set(title, word, self._random)),
            )
        sounds = _room("sounds")
        variant, place = divmod(number, len(sounds.TITLES))
        title = sounds.TITLES[place]
        return self._named(
            f"{number + 1}: {title}", lambda word: self._media(word, audio=(sounds.clip(title, variant),))
        )

    def _invalid(self) -> Iterator[Check]:
        def invalid(title: str, **change: Any) -> Check:
            check = self._named(title, lambda word: self._plain(word, 0, None))
            return replace(check, job=replace(check.job, **change), invalid=True, canary="")

        match self._modality:
            case Modality.TEXT | Modality.FUSION:
                yield invalid("empty prompt", prompt="")
                if self._real:
                    yield invalid("half a surrogate pair", prompt="\ud83d")
            case Modality.VISION:
                page = _room("pictures").small_page("CUT", self._random)
                yield invalid("cut-off picture", images=(_room("pictures").cut_off(page),))
                yield invalid("broken second picture", images=(page, b"no picture"))
            case Modality.AUDIO:
                sounds = _room("sounds")
                yield invalid("cut-off sound", audio=(sounds.cut_off(sounds.short_clip(0)),))
                yield invalid("no sound", audio=(b"not a sound",))

    def _neighbour(self, number: int) -> Check:
        self._neighbours += 1
        name = f"neighbour {self._neighbours}"
        if number % _REFUSED_OF == _REFUSED_OF - 1:
            check = self._named(name, lambda word: self._plain(word, self._neighbours, _STRANGE))
            return replace(check, must_fail=True)
        check = self._named(name, lambda word: self._plain(word, self._neighbours, None))
        if number % _CANCELLED_OF == _CANCELLED_OF - 1:
            return replace(check, stop_after=self._random.randint(1, 4))
        return check

    def _named(self, name: str, make: Any) -> Check:
        check = Check(name=name, alias=self._alias, job=_NOTHING)
        word = self._aviary.hatch(check.owner)
        return replace(check, job=make(word), canary=word)

    def _plain(self, word: str, number: int, resume: Resume | None) -> EngineJob:
        """A job that takes little time."""
        if self._modality in {Modality.TEXT, Modality.FUSION}:
            job = self._text(neighbour_kind(self._random, self._context_tokens), word)
        elif self._modality is Modality.VISION:
            job = self._media(word, images=(_room("pictures").small_page(word, self._random),))
        else:
            job = self._media(word, audio=(_room("sounds").short_clip(number),))
        return replace(job, resume=resume)

    def _text(self, kind: Kind, word: str) -> EngineJob:
        pictures: tuple[bytes, ...] = ()
        if self._modality is Modality.FUSION:
            pictures = (_room("pictures").small_page(word, self._random),)
        sampling = sampling_of(kind)
        return EngineJob(
            key="",
            prompt=kind.prompt.replace("{word}", word.capitalize()),
            sampling=sampling if self._real else sampling.model_copy(update={"stop": ()}),
            seed=self._random.randrange(_SEEDS),
            images=pictures,
        )

    def _media(
        self, word: str, *, images: tuple[bytes, ...] = (), audio: tuple[bytes, ...] = ()
    ) -> EngineJob:
        # Most of these models take no prompt; to those that do, the word tells the jobs apart.
        return EngineJob(
            key="",
            prompt=f"What is it about {word.capitalize()}?",
            sampling=Sampling(max_new_tokens=24),
            seed=self._random.randrange(_SEEDS),
            images=images,
            audio=audio,
        )


def _room(name: str) -> Any:
    """Pictures and sounds need libraries that text doesn't."""
    return import_module(f"ccs_workers.verify.{name}")
