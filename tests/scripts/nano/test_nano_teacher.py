"""Pure parts of the teacher, tokenise and judge stages; no speech package is needed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from scripts.nano.judge import ErrorCount, edit_distance, resample
from scripts.nano.speech import shards as speech
from scripts.nano.speech.teacher_voice import with_output
from scripts.nano.speech.word_times import (
    LEAD_S,
    TAIL_S,
    code_labels,
    join_words,
    speech_bounds,
    spelled_a,
    word_starts_s,
)
from scripts.nano.teacher import plan, summarise
from scripts.nano.tokenise import batches_of, code_starts

KNOWN = frozenset("abcdefgh ,.!")


def test_words_begin_at_their_first_sound():
    spoken = join_words(
        [("ab", True), (",", False), ("cd", False), ("!", True), ("e f", False), (".", False)],
        KNOWN,
    )
    assert spoken.phonemes == "ab ,cd! e f."
    assert [spoken.phonemes[begin] for begin in spoken.word_begins] == ["a", "c", "e"]


def test_a_word_of_punctuation_only_still_counts():
    spoken = join_words([("ab", True), (".", True), ("cd", True)], KNOWN)
    assert spoken.phonemes == "ab . cd"
    assert spoken.word_begins == (0, 3, 5)


def test_silent_word_begins_where_the_next_piece_does_and_unknown_phonemes_are_left_out():
    spoken = join_words([("aXb", True), ("", True), ("c", False)], KNOWN)
    assert spoken.phonemes == "ab  c"
    assert spoken.word_begins == (0, 3, 4)


def test_a_large_a_within_a_sentence_is_the_letter_and_at_its_start_the_article():
    assert spelled_a(["A", "man", "came", "at", "ten", "A", "M"]) == [5]
    assert spelled_a(["the", "N", "A", "S", "A", "team"]) == [2, 4]
    assert spelled_a(["Am", "I", "in", "plan", "A", "or", "B"]) == [4]
    assert spelled_a(["A", ",", "B", ",", "and", "C", "."]) == [0]
    assert spelled_a(["She", "said", ":", "A", "fool", "said", "so", "."]) == []


def test_every_code_has_the_phoneme_of_its_middle_and_a_mark_of_stress_that_of_its_vowel():
    ids = np.array([0, 60, 156, 70, 16, 80, 0])
    labels = code_labels(ids, "tˈɑ d", np.array([2, 2, 1, 3, 2, 4, 2]), 0.025, 14 * 600)
    assert labels.tolist() == [0, 60, 70, 70, 0, 0, 80, 80, 0]


def test_word_starts_are_the_durations_before_the_word():
    durations = np.array([10, 2, 3, 1, 4, 5], np.float32)
    assert word_starts_s(durations, (0, 3)) == pytest.approx([0.25, 0.4])


def test_silence_is_trimmed_to_a_little():
    wave = np.zeros(24_000, np.float32)
    wave[9_600:14_400] = 0.5
    first, end = speech_bounds(wave)
    assert first == 9_600 - round(LEAD_S * 24_000)
    assert end == 14_400 + round(TAIL_S * 24_000)
    assert speech_bounds(np.zeros(4_800, np.float32)) == (0, 0)
    assert speech_bounds(np.ones(50, np.float32)) == (0, 0)


def test_trimming_never_leaves_the_wave():
    assert speech_bounds(np.full(2_400, 0.5, np.float32)) == (0, 2_400)


def test_added_graph_output_is_well_formed():
    added = with_output(b"model", "/Clip_output_0")[5:]
    assert len(added) == 26
    assert added[:2] == bytes([7 << 3 | 2, 24])
    assert added[2:4] == bytes([12 << 3 | 2, 22])
    assert b"\x0a\x0e/Clip_output_0" in added


def test_first_word_keeps_its_onset_and_starts_never_fall():
    starts = code_starts((0.31, 0.42, 0.41, 9.0), num_codes=20, codes_per_s=25)
    assert starts.dtype == np.uint16
    assert starts.tolist() == [0, 11, 11, 19]


def test_batches_hold_everything_once_and_stay_small():
    lengths = [5, 1, 9, 4, 4, 30]
    batches = list(batches_of(lengths, max_samples=12))
    assert sorted(i for batch in batches for i in batch) == list(range(6))
    assert all(
        len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= 12 for batch in batches
    )


def make_shard(work: Path, number: int, waves: list[np.ndarray]) -> None:
    directory = speech.speech_dir(work)
    directory.mkdir(exist_ok=True)
    entries, offset = [], 0
    for k, wave in enumerate(waves):
        identity = 10 * number + k
        split = "held" if k else "train"
        entries.append(
            {
                "id": identity,
                "split": split,
                "offset": offset,
                "samples": len(wave),
                "words": [["a", 0.0]],
                "phonemes": "",
            }
        )
        offset += len(wave)
    np.concatenate(waves).astype("<i2").tofile(directory / f"shard-{number:05d}.s16")
    index = {"utterances": entries, "dropped": [[99, "silent"]]}
    (directory / f"shard-{number:05d}.json").write_text(json.dumps(index))


def test_shards_are_read_back_and_counted(tmp_path):
    make_shard(tmp_path, 1, [np.arange(100), np.full(50, -16384)])
    make_shard(tmp_path, 0, [np.arange(7)])
    (speech.speech_dir(tmp_path) / "shard-00002.s16").write_bytes(b"unfinished")
    utterances = speech.read_utterances(tmp_path)
    assert [u.id for u in utterances] == [0, 10, 11]
    assert np.allclose(utterances[1].read() * 32768, np.arange(100))
    assert utterances[2].read().min() == utterances[2].read().max() == -0.5
    assert [u.id for u in speech.read_utterances(tmp_path, "held")] == [11]
    assert speech.hours_on_disk(tmp_path) == pytest.approx(157 / 24_000 / 3600)
    figures = summarise(speech.speech_dir(tmp_path), wall_s=1.0)
    assert figures["utterances"] == 3
    assert figures["reasons"] == {"silent": 2}


def test_waiting_for_speech_ends_with_the_teacher_or_the_clock(tmp_path):
    make_shard(tmp_path, 0, [np.arange(24_000)])
    assert speech.wait_for_speech(tmp_path, hours=1 / 3600) == pytest.approx(1 / 3600)
    assert speech.wait_for_speech(tmp_path, hours=5.0, deadline=0.0) == pytest.approx(1 / 3600)
    (speech.speech_dir(tmp_path) / "done.json").write_text("{}")
    assert speech.wait_for_speech(tmp_path, hours=5.0) == pytest.approx(1 / 3600)


def test_every_prompt_is_in_one_shard_answers_first_and_the_digest_follows_the_prompts(tmp_path):
    takes = [["ada", 1.0], ["ben", 0.9]]
    lines = [
        json.dumps(
            {
                "id": k,
                "mode": "chat" if k in (4, 7) else "read",
                "takes": takes[: 2 if k == 7 else 1],
            }
        )
        for k in range(10)
    ]
    (tmp_path / "prompts.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    shards, digest = plan(tmp_path, prompts_per_shard=4)
    found = [[p["id"] for p in shard] for shard in shards]
    assert found == [[16, 28, 29], [0, 8, 20, 32], [4, 12, 24, 36]]
    assert [p["voice"] for p in shards[0]] == ["ada", "ada", "ben"]
    assert plan(tmp_path, prompts_per_shard=4)[1] == digest
    (tmp_path / "prompts.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[1:]).encode()))
    assert plan(tmp_path, prompts_per_shard=4)[1] != digest


def test_edit_distance():
    assert edit_distance(["a", "b", "c"], ["a", "x", "c", "d"]) == 2
    assert edit_distance([], ["a"]) == 1
    assert edit_distance("kitten", "sitting") == 3


def test_error_counts_add_up():
    total = ErrorCount(1, 4, 2, 20) + ErrorCount(0, 6, 0, 30)
    assert total.word_error_rate == pytest.approx(0.1)
    assert total.char_error_rate == pytest.approx(0.04)


def test_resampling_keeps_a_tone_and_removes_what_does_not_fit():
    pytest.importorskip("scipy")
    t = np.arange(24_000) / 24_000
    kept = resample(np.sin(2 * np.pi * 1000 * t), 24_000, 16_000)
    assert len(kept) == 16_000
    assert (
        np.abs(
            kept[2000:-2000] - np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000)[2000:-2000]
        ).max()
        < 0.01
    )
    gone = resample(np.sin(2 * np.pi * 11_000 * t), 24_000, 16_000)
    assert np.abs(gone[2000:-2000]).max() < 0.01


def test_word_error_rate_compares_what_is_spoken():
    judge = pytest.importorskip("scripts.nano.judge")
    pytest.importorskip("moss_engine.text.spoken.text")
    assert judge.word_error_rate("Twenty-one men, didn't go!", "21 men didn't go") == 0.0
    assert judge.word_error_rate("a b c d", "a x c") == pytest.approx(0.5)
