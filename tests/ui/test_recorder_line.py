"""The recorder's way to the server: who begins anew while it is slow loses nothing, and is told of
its faults in words."""

from __future__ import annotations

import pytest

from tests.ui.node import in_node, source

# A server whose /listen answers when it is told to; `sent` is what it heard, by its place in a recording.
SERVER = """
const [listens, sent, told] = [[], [], []];
const soon = () => new Promise((resolve) => setTimeout(resolve));
const json = (answer, ok = true) => ({ ok, status: ok ? 200 : 502, json: async () => JSON.parse(answer) });
const fetch = (address, { body }) => {
  if (address.endsWith("/listen")) return new Promise((...ways) => listens.push(ways));
  const [, seq] = address.match(/seq=([0-9]+)/);
  sent.push([Number(seq), ...new Set(body)]);
  return Promise.resolve(json('{"utterance": ""}'));
};
const window = { liveAudio: { state: { phase: "done" } } };
const Line = new Function("window", "fetch", `${script}; return Line`)(window, fetch);
let heard = 0;
const line = new Line(() => (heard += 1), (sentence) => told.push(sentence), () => "");
const block = (number) => new Int16Array(4).fill(number);
const opened = () => listens[0][0](json('{"data": ["key"]}'));
"""


def happened(steps: str) -> dict:
    return in_node(
        f"async (script) => {{ {SERVER} {steps}"
        "  await soon();"
        "  return { listens: listens.length, sent, heard, told }; }",
        source("recorder_line.js"),
    )


def test_a_recording_that_begins_anew_before_the_line_is_open_arrives_whole_and_in_order():
    seen = happened("""
      line.begin(false);
      line.push(block(1));
      line.drop();
      line.begin(false);
      line.push(block(11));
      opened();
      await soon();
      line.push(block(12));
      await soon();
      line.push(block(13));
      line.end();
    """)
    assert seen["sent"] == [[0, 11], [1, 12], [2, 13]]
    assert seen["heard"] == 3 and seen["told"] == []


def test_the_line_is_asked_for_once_by_all_who_wait_for_it():
    seen = happened(
        "line.begin(false); line.push(block(1)); const open = line.open(); opened(); await open;"
    )
    assert seen["listens"] == 1 and seen["sent"] == [[0, 1]]


def test_a_line_that_could_not_be_opened_is_asked_for_again():
    seen = happened("""
      line.begin(false);
      line.push(block(1));
      listens[0][1](new TypeError("Failed to fetch"));
      await soon();
      line.begin(false);
      line.push(block(2));
      listens[1][0](json('{"data": ["key"]}'));
    """)
    assert seen["listens"] == 2 and seen["sent"] == [[0, 2]] and len(seen["told"]) == 1


@pytest.mark.parametrize(
    "answer",
    [
        'listens[0][1](new TypeError("Failed to fetch"))',
        'listens[0][0](json("<html>502</html>", false))',
        'listens[0][0](json("<html>200</html>"))',
        """listens[0][0](json('{"error": null}', false))""",
    ],
)
def test_a_server_that_cannot_be_reached_is_told_in_words(answer: str):
    seen = happened(f"line.begin(false); line.push(block(1)); {answer};")
    assert seen["told"] == ["The connection to the server was lost; check it and try again."]
    assert seen["sent"] == []


def test_what_the_server_says_itself_is_told_as_it_stands():
    said = """listens[0][0](json('{"error": "No ear is free."}', false));"""
    assert happened(f"line.begin(false); line.push(block(1)); {said}")["told"] == [
        "No ear is free."
    ]
