"""What the small talk answers to 120 questions, beside the verdicts of a reader:
`python -m tests.talk.judged_answers`, JSON.

The questions are those of tests/talk, half of which nobody looked at while the answers were made.
An answer that was judged before keeps its verdict while it stays word for word what it was; every
other one is "unread", until a reader writes "sensible", "admitted" or "wrong" into
judged_answers.json. The clock stands still; what the network recites is asked of the
built-in voice.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

from moss_engine.api.errors import MossError
from moss_engine.client import Client, open_service
from moss_engine.config import REPO_ROOT
from moss_engine.talk.answer import Question, Recite, Role, Say
from moss_engine.talk.small_talk import SmallTalk

QUESTIONS = tuple(
    REPO_ROOT / "tests" / "talk" / name for name in ("questions.txt", "questions_held.txt")
)
JUDGED = Path(__file__).with_suffix(".json")
VERDICTS = ("sensible", "admitted", "wrong")
UNREAD = "unread"
NOW = datetime(2026, 3, 2, 9, 20)
SPEEDS = (0.7, 1.5)
HISTORY: tuple[tuple[Role, str], ...] = (("user", "My dog is old."), ("assistant", "How nice."))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.talk.judged_answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    known = verdicts(JUDGED)
    with open_service() as client:
        answers = [
            {"question": asked, **(answer := worded(part, client)),
             "verdict": known.get((asked, answer["answer"]), UNREAD)}
            for asked, part in replies()
        ]  # fmt: skip
    counts = Counter(entry["verdict"] for entry in answers)
    report = {name: counts[name] for name in (*VERDICTS, UNREAD) if counts[name] or name != UNREAD}
    print(json.dumps({**report, "answers": answers}, indent=1))


def verdicts(path: Path) -> dict[tuple[str, str], str]:
    """By question and answer, as far as they were given."""
    if not path.is_file():
        return {}
    judged = json.loads(path.read_text(encoding="utf-8"))["answers"]
    return {(entry["question"], entry["answer"]): entry["verdict"] for entry in judged}


def replies() -> list[tuple[str, Say | Recite]]:
    """Every question and what is said to it, each file being asked by a visitor of its own."""
    found = []
    for path in QUESTIONS:
        talk = SmallTalk(SPEEDS, now=lambda: NOW)
        for line in path.read_text(encoding="utf-8").splitlines():
            asked = line.partition(" | ")[0]
            found.append((asked, talk.reply(Question(asked, HISTORY, session_id="visitor"))))
    return found


def worded(part: Say | Recite, client: Client) -> dict[str, Any]:
    """An answer as text, and the question that the network was asked where it gave it."""
    if isinstance(part, Say):
        return {"answer": part.text}
    mode = next(mode.name for mode in client.info.modes if not mode.split_sentences)
    return {"answer": client.say(part.question, mode=mode).text, "recites": part.question}


if __name__ == "__main__":
    try:
        main()
    except MossError as error:
        sys.exit(str(error))
