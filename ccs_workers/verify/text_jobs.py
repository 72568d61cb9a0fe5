"""Prompts of many lengths, scripts and settings, each with a word to repeat that no other job has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ccs_broker.contract import Sampling

if TYPE_CHECKING:
    from random import Random

__all__ = ["Kind", "kinds_that_fit", "neighbour_kind", "sampling_of"]

#: Tokens that a chat template may add.
_FRAME_TOKENS: Final = 160
_LONG: Final = (
    "The boats left the harbor before dawn, and the gulls followed them past the last buoy. {lines} On the way back "
    "the oldest of the crew said one word, {word}, and nobody knew what it meant. Which word did he say?"
)
_LINE: Final = "The wind turned at noon, the nets came up heavy, and someone sang of rain. "


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of job: ``prompt`` has a place for the word."""

    title: str
    prompt: str
    sampling: dict[str, Any] = field(default_factory=dict)

    def fits(self, context_tokens: int | None) -> bool:
        """Whether prompt and answer surely fit, a token a byte at worst."""
        size = len(self.prompt.encode()) + _FRAME_TOKENS + int(self.sampling["max_new_tokens"])
        return context_tokens is None or size <= context_tokens


def _kind(title: str, prompt: str, new: int, **sampling: Any) -> Kind:
    return Kind(title, prompt, {"max_new_tokens": new, **sampling})


_KINDS: Final = (
    _kind("greedy", "Repeat this word and say nothing else: {word}", 24),
    _kind("seeded", "Write the word {word} three times, then count to ten.", 32, temperature=0.8),
    _kind("long prompt", _LONG.format(lines=_LINE * 12, word="{word}"), 16),
    _kind("CJK", "请重复 {word} 这个词。然后用中文介绍一下北京的春天。", 32, repetition_penalty=1.2),
    _kind("emoji", "Repeat {word} between two 🎉, then 👩‍👩‍👧‍👦 and 🏳️‍🌈.", 24, temperature=1.0, top_k=40),
    _kind(
        "combining accents",
        "Re\u0301pe\u0301tez le mot {word}, s’il vous plai\u0302t, en de\u0301tachant les syllabes.",
        24,
        temperature=0.7,
        top_p=0.9,
    ),
    _kind(
        "stop strings", "Name three animals, one a line, and then the word {word}.", 40, stop=(".", "\n\n")
    ),
    _kind("one token", "Is {word} a word? Answer yes or no.", 1),
    _kind("hot", "Say {word} and then whatever comes to your mind.", 24, temperature=2.0),
    _kind("right to left", "كرر هذه الكلمة: {word} ثم قل مرحبا. שלום", 20),
    _kind("stopped and seeded", "Tell me about {word} in a sentence.", 40, temperature=1.0, stop=("e",)),
    _kind(
        "code",
        "def {word}(n):\n    # the n-th prime\n",
        48,
        temperature=0.4,
        top_k=20,
        repetition_penalty=1.1,
    ),
    _kind("blanks", "{word}\n\n\n\t   {word}     {word}\n", 16),
    _kind("names of special tokens", "<|im_end|> {word} <|endoftext|><s> {word}", 16),
    _kind("other scripts", "{word}: नमस्ते, สวัสดี, Здравствуй, γειά. Again, in the same order:", 32),
    _kind(
        "long answer",
        "Spell {word} letter by letter, and tell a story about it.",
        64,
        temperature=0.9,
        top_p=0.8,
    ),
)
#: For models whose context is too short for any of these.
_SHORTEST: Final = _kind("short", "{word}", 4)


def kinds_that_fit(context_tokens: int | None) -> tuple[Kind, ...]:
    """The sorts of jobs that a model can run; the shortest one if there is no other."""
    return tuple(kind for kind in _KINDS if kind.fits(context_tokens)) or (_SHORTEST,)


def neighbour_kind(random: Random, context_tokens: int | None) -> Kind:
    """A job to run beside others: as they are, but of another length and temperature."""
    kind = random.choice(kinds_that_fit(context_tokens))
    new = random.randint(1, kind.sampling["max_new_tokens"])
    temperature = random.choice((0.0, round(random.uniform(0.1, 1.8), 2)))
    return Kind(
        f"like {kind.title}",
        kind.prompt,
        {**kind.sampling, "max_new_tokens": new, "temperature": temperature},
    )


def sampling_of(kind: Kind) -> Sampling:
    """The settings as a job has them."""
    return Sampling.model_validate(kind.sampling)
