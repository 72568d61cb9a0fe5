"""The options of a text model in the model file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

from ccs_broker.errors import ConfigurationError

if TYPE_CHECKING:
    from pydantic import JsonValue

    from ccs_workers.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """What can be said of a text model besides its folder, dtype and device."""

    #: Threads of one operation on a CPU. One is right wherever anything else runs beside this engine.
    torch_threads: int = 1
    #: Jobs decoded in one step; more wait for a place.
    max_batch: int = 16
    #: Room for keys and values, in tokens of all running jobs together, prompts and answers. A job starts
    #: when its whole length fits. None: 512 per job of a batch, and at least one context of up to 8192.
    kv_tokens: int | None = None
    #: Most tokens of prompt and answer together. None: what the model has learnt, if ``kv_tokens`` allows.
    max_context: int | None = None
    #: Most tokens of one forward pass; longer prompts are read in pieces, between which the others go on.
    #: None: 4 per job of a batch on a CPU, where more only makes the others wait, and 1024 elsewhere.
    step_tokens: int | None = None
    #: On a CPU in fp32: whether to keep weights in oneDNN's layout; see ``packing``.
    packed_weights: bool = True
    #: Whether to wrap prompts in the tokenizer's chat template, where it has one.
    chat: bool = True
    #: System message of the chat.
    system: str | None = None
    #: Whether names of special tokens in a prompt (``<|im_end|>``) count as these tokens: for callers who may write
    #: the whole input of the model, with ``chat = false``. Otherwise they are text.
    special_tokens: bool = False

    @classmethod
    def of(cls, spec: ModelSpec) -> Self:
        """Read and check the options of a spec.

        Raises:
            ConfigurationError: an unknown name or a value of the wrong kind.
        """
        known = {entry.name: entry.default for entry in fields(cls)}
        for name, value in spec.options.items():
            where = f"model {spec.alias!r}: option {name!r}"
            if name not in known:
                raise ConfigurationError(f"{where} is unknown; a text model knows: {', '.join(known)}")
            if fault := _fault(name, value):
                raise ConfigurationError(f"{where} must be {fault}")
        options = cls(**dict(spec.options))  # type: ignore[arg-type]  # checked one by one above
        if options.step_tokens is not None and options.step_tokens < options.max_batch:
            raise ConfigurationError(
                f"model {spec.alias!r}: option 'step_tokens' ({options.step_tokens}) must be at least "
                f"'max_batch' ({options.max_batch}): each job of a batch decodes one token a step"
            )
        return options

    def step_tokens_on(self, device_type: str) -> int:
        """Return the most tokens of one forward pass on a kind of device (``cpu``, ``cuda``)."""
        if self.step_tokens is not None:
            return self.step_tokens
        return self.max_batch * 4 if device_type == "cpu" else max(1024, self.max_batch * 4)


def _fault(name: str, value: JsonValue) -> str | None:
    if name in {"chat", "packed_weights", "special_tokens"}:
        return None if isinstance(value, bool) else "true or false"
    if name == "system":
        return None if isinstance(value, str) and value else "a text that is not empty"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return None
    return "a whole number, 1 or more"
