"""Prompts that take the texts of steps: exactly the places that name one, and nothing a text holds."""

from __future__ import annotations

import pytest

from ccs_broker.pipelines.templates import filled, taken


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        ("", ()),
        ("Answer: {transcript.text}", ("transcript",)),
        ("{b.text} {a.text} {b.text}", ("b", "a")),
        ("{{a.text}} {a1_b.text}", ("a1_b",)),
        ('{"a": {"text": 1}} {a} {a.texts} {A.text} {1.text} {.text} {a.text', ()),
        ("{ a.text } {a.label}", ()),
    ],
)
def test_the_steps_that_a_prompt_takes(prompt, names):
    assert taken(prompt) == names


def test_texts_come_into_their_places_as_they_are():
    texts = {"a": "{b.text} \\1 {{a.text}}", "b": "B"}
    assert (
        filled("<{a.text}|{b.text}|{a.text}>", texts) == "<{b.text} \\1 {{a.text}}|B|{b.text} \\1 {{a.text}}>"
    )


def test_doubled_braces_are_the_place_itself():
    assert filled('{{a.text}} is {a.text}; {"json": {}}', {"a": "A"}) == '{a.text} is A; {"json": {}}'


def test_a_text_that_is_missing_is_an_error():
    with pytest.raises(KeyError):
        filled("{a.text}", {})
