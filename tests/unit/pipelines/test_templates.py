"""Prompts that take what steps found: exactly the places that name one, and nothing a text holds."""

from __future__ import annotations

import pytest

from ccs_broker.pipelines.templates import filled, literal, taken


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        ("", ()),
        ("Answer: {transcript.text}", ("transcript",)),
        ("{b.text} {a.labels} {b.labels}", ("b", "a")),
        ("{{a.text}} {a1_b.text}", ("a1_b",)),
        ('{"a": {"text": 1}} {a} {a.texts} {A.text} {1.text} {.text} {a.text', ()),
        ("{ a.text } {a.label}", ()),
    ],
)
def test_the_steps_that_a_prompt_takes(prompt, names):
    assert taken(prompt) == names


def test_texts_come_into_their_places_as_they_are():
    found = {("a", "text"): "{b.text} \\1 {{a.text}}", ("b", "text"): "B", ("b", "labels"): "cat (0.90)"}
    assert (
        filled("<{a.text}|{b.text}|{b.labels}|{a.text}>", found)
        == "<{b.text} \\1 {{a.text}}|B|cat (0.90)|{b.text} \\1 {{a.text}}>"
    )


def test_doubled_braces_are_the_place_itself():
    found = {("a", "text"): "A"}
    assert filled('{{a.text}} is {a.text}; {"json": {}}', found) == '{a.text} is A; {"json": {}}'


@pytest.mark.parametrize(
    "text",
    ["", "plain", "{a.text}", "{{a.text}}", "{{{a.text}}}", "{{{{a.labels}}}}", '{"a": {}} {a.text', "{b.c}"],
)
def test_a_literal_text_takes_nothing_and_comes_out_as_it_was(text):
    assert taken(literal(text)) == ()
    assert filled(literal(text), {}) == text


def test_a_text_that_is_missing_is_an_error():
    with pytest.raises(KeyError):
        filled("{a.text}", {})
