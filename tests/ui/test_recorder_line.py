"""The recorder's way to the server: blocks in their order through the page's door, files by a request
of their own, whose faults are told in words."""

from __future__ import annotations

import pytest

from tests.ui.node import in_node, module

LOST = "The connection to the server was lost; check it and try again."
SETTING = """
const json = (answer, ok = true) => ({ ok, status: ok ? 200 : 502, json: async () => JSON.parse(answer) });
const [sent, heard, failed, asked] = [[], [], [], []];
const door = { send: (event) => sent.push(event), sound: (pcm) => sent.push([...new Set(pcm)]) };
const window = (globalThis.window = { liveAudio: { state: { phase: "done" }, door } });
const answers = [];
globalThis.fetch = async (address) => {
  asked.push(address.split("/").at(-1));
  const answer = answers.shift();
  if (answer instanceof Error) throw answer;
  return answer;
};
globalThis.setTimeout = (go) => go();
const { Line } = await import(url);
const line = new Line((answer) => heard.push(answer.block), (sentence) => failed.push(sentence), () => "words");
const block = (number) => new Int16Array(4).fill(number);
"""


def happened(steps: str) -> dict:
    return in_node(
        f"async (url) => {{ {SETTING} {steps} return {{ sent, heard, failed, asked }}; }}",
        module("recorder.js"),
    )


def test_blocks_go_in_their_order_behind_what_the_page_says_and_before_what_it_plays():
    seen = happened("""
      line.begin(true);
      line.push(block(1));
      line.push(block(2));
      window.liveAudio.state.phase = "speaking";
      line.push(block(3), block(7));
      line.end();
    """)
    kinds = [one if isinstance(one, list) else one["type"].split(".")[1] for one in seen["sent"]]
    assert kinds == ["begin", "update", [1], [2], "update", [3, 7], "commit"]
    said = [(one["answering"], one["played"]) for one in seen["sent"] if "answering" in one]
    assert said == [(False, False), (True, True)]


def test_what_is_heard_of_a_recording_before_is_nobodys():
    seen = happened("""
      line.begin(true);
      line.push(block(1));
      line.drop();
      line.begin(true);
      line.answered({ recording: 1, block: 0 });
      line.answered({ recording: 2, block: 7 });
      line.answered({ recording: 2, block: 8, last: true });
      line.answered({ recording: 2, block: 9 });
    """)
    assert seen["heard"] == [7, 8] and seen["failed"] == []


def test_a_microphone_that_failed_hears_no_more():
    seen = happened("""
      line.begin(true);
      line.answered({ recording: 1, failed: "No ear is free." });
      line.push(block(1));
    """)
    assert seen["failed"] == ["No ear is free."] and [1] not in seen["sent"]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ('json("<html>502</html>", false)', LOST),
        ('json("<html>200</html>")', LOST),
        ("""json('{"detail": "It is too long."}', false)""", "It is too long."),
    ],
)
def test_why_a_file_cannot_be_sent_is_told_in_words(answer: str, sentence: str):
    seen = happened(f"""
      answers.push({answer});
      await line.sendFile("file").catch((error) => failed.push(error.message));
    """)
    assert seen["failed"] == [sentence] and seen["asked"] == ["hear"]


def test_a_file_is_tried_again_where_the_network_fails_it():
    seen = happened("""
      const lost = new TypeError("Failed to fetch");
      answers.push(lost, json('{"utterance": "u"}'), lost, lost, lost);
      heard.push((await line.sendFile("file")).utterance);
      await line.sendFile("file").catch((error) => failed.push(error.message));
    """)
    assert seen["heard"] == ["u"] and seen["failed"] == [LOST] and len(seen["asked"]) == 5
