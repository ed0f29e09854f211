"""The captions' words, in step with the sound."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.ui.node import in_node, module

ENGLISH = "The sky is blue, because air scatters it.  No doubt. "
CHINESE = "天空之所以是蓝色的，是因为空气！MOSS 说：“对。”"
# An element as far as captions need one; the text comes in pieces, as a model makes it.
WORDS = """async (url, text, piece) => {
  const made = () => ({ textContent: "", classes: {}, children: [], append(child) { this.children.push(child); },
    replaceChildren(...children) { this.children = children; },
    classList: { said: false, toggle(name, on) { this[name] = on; } } });
  globalThis.document = { createElement: made };
  const { Captions } = await import(url);
  const captions = new Captions(made());
  captions.follow = () => {};
  for (let at = 0; at < text.length; at += piece) captions.add(0, text.slice(at, at + piece));
  const words = () => [...captions.times(100, 1, true)].map(([element]) => element);
  const heard = [25, 50, 75, 100].map((at) => {
    captions.show(at, 100, 1, true);
    return words().filter(({ classList }) => classList.said).map(({ textContent }) => textContent).join("").length;
  });
  return { timed: captions.timed(100, 1), words: words().map(({ textContent }) => textContent), heard: heard.map((letters) => letters / text.length) };
}"""


def words(text: str, piece: int = 3) -> dict:
    return in_node(WORDS, module("stage.js"), text, piece)


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
@pytest.mark.parametrize("piece", [1, 3, 100])
def test_words_are_marked_as_they_are_heard(text: str, piece: int):
    seen = words(text, piece)
    assert "".join(seen["words"]) == text
    for at, heard in zip((0.25, 0.5, 0.75, 1.0), seen["heard"], strict=True):
        assert at <= heard <= at + 0.2 or heard == 1.0


def test_a_chinese_word_is_one_sign_with_the_punctuation_behind_it():
    assert words(CHINESE)["words"] == [
        *"天空之所以是蓝色",
        "的，",
        *"是因为空",
        "气！",
        "MOSS",
        " 说：“",
        "对。”",
    ]


def test_an_english_word_stands_with_the_space_before_it():
    assert words(ENGLISH)["words"] == [
        "The", " sky", " is", " blue,", " because", " air", " scatters", " it.", "  No", " doubt. ",
    ]  # fmt: skip


def test_words_are_told_with_their_seconds_and_chinese_sentences_stay_whole():
    timed = words("It is 3 P M. 天空是蓝的。对！", 100)["timed"]
    assert [text for text, *_ in timed] == ["It", "is", "3", "PM.", "天空是蓝的。", "对！"]
    assert timed[0][1] == 0 and timed[-1][2] == 100
    assert all(one[2] == after[1] for one, after in pairwise(timed))


@pytest.mark.parametrize("piece", [1, 100])
def test_letters_that_are_spelled_are_written_together(piece: int):
    text = "At three P M. Ask the C E O of A T and T. I am I, Plan B it is."
    assert "".join(words(text, piece)["words"]) == (
        "At three PM. Ask the CEO of AT and T. I am I, Plan B it is."
    )
