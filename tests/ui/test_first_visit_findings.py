"""What the first demanding visitors found broken, and the tests that hold each of it mended."""

from __future__ import annotations

import ast

import pytest

from moss_engine.config import REPO_ROOT

FINDINGS = {
    "an empty Enter or any refused input killed what was heard and shown": (
        "ui/test_page_refusals.py::test_nothing_to_say_is_no_mistake",
        "ui/test_page_refusals.py::test_a_refusal_leaves_a_speaking_reply_alone",
        "ui/test_page_refusals.py::test_a_refusal_leaves_a_finished_reply_alone",
    ),
    "parts left their cards and overprinted each other at common widths": (
        "ui/test_page_layout.py::test_nothing_is_out_of_place_at_any_width",
    ),
    "Stop never lit up while it spoke": (
        "ui/test_page_refusals.py::test_stop_is_there_while_there_is_something_to_stop",
    ),
    "predict gave no sound, and the document of the interface told of routes that are not there": (
        "ui/test_gradio_api.py::test_predict_gives_the_whole_sound",
        "ui/test_gradio_api.py::test_all_but_the_text_may_be_left_out",
        "ui/test_gradio_api.py::test_what_clients_are_told_is_true",
    ),
    "RTF counted the pauses in which a reply was held back for its listener": (
        "api/test_metrics.py::test_rtf_is_time_over_audio_and_not_the_inverse",
        "api/test_metrics.py::test_pauses_for_a_listener_far_behind_are_no_working_time",
    ),
    "the scope turned its page although the reply fitted, and could not be moved in": (
        "ui/test_page_scope.py::test_a_reply_that_fits_turns_no_page",
        "ui/test_page_scope.py::test_a_press_on_the_scope_is_heard_from_there",
    ),
    "an example overwrote a draft": (
        "ui/test_page_refusals.py::test_an_example_leaves_a_draft_alone",
    ),
    "reasons stood in a toast that went away": (
        "ui/test_page_refusals.py::test_a_reason_stands_under_the_box_until_the_next_edit",
        "ui/test_page_refusals.py::test_a_reply_that_fails_says_why_in_the_same_place",
    ),
    "a reload lost the conversation": (
        "ui/test_page_reload.py::test_a_reload_in_the_middle_of_a_reply_brings_the_conversation_"
        "back_at_once",
        "ui/test_page_reload.py::test_a_reply_that_a_lost_server_cut_off_is_kept_and_said_to_be_"
        "forgotten",
    ),
    "a slow link made gaps": (
        "ui/test_page_slow.py::test_a_slow_link_carries_compressed_sound_at_a_fraction_of_its_rate",
        "ui/test_page_slow.py::test_a_fast_link_carries_every_sample",
    ),
    "while a voice sample was recorded, the microphone offered to send it": (
        "ui/test_page_moss.py::test_while_a_voice_sample_is_recorded_the_microphone_does_not_"
        "offer_to_send_it",
    ),
    "a clip could not be played while a reply spoke": (
        "ui/test_page_asking.py::test_a_clip_is_heard_although_a_reply_speaks",
    ),
    "contrast, stops of the tab key, forced colours, and a screen reader that spoke over the voice": (
        "ui/test_page_browser.py::test_text_can_be_read_in_both_shades",
        "ui/test_page_axe.py::test_axe_finds_nothing_in_any_state",
        "ui/test_page_browser.py::test_keyboard_alone_is_enough",
        "ui/test_page_browser.py::test_where_the_browser_chooses_the_colours_lines_say_what_they_"
        "said",
        "ui/test_page_browser.py::test_what_is_spoken_is_not_read_out_over_the_voice",
    ),
    "blocks that are kept until they are needed looked like none left": (
        "ui/test_page_lost.py::test_after_stop_the_panel_shows_the_blocks_as_they_are",
    ),
    "who asked for an event that is not there left a traceback": (
        "ui/test_page_guard.py::test_who_listens_to_what_is_not_there_is_told_so",
    ),
}


@pytest.mark.parametrize("finding", FINDINGS)
def test_each_finding_is_held_by_tests_that_are_there(finding):
    for name in FINDINGS[finding]:
        path, function = name.split("::")
        code = ast.parse((REPO_ROOT / "tests" / path).read_text("utf-8"))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        there = {node.name for node in code.body if isinstance(node, kinds)}
        assert function in there, f"{finding}: {name} is gone"
