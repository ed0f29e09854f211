"""What is left out of a conversation that is too long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moss_engine.api.request import Message, Request, Text, without_older_half
from tests.fakes import make_request

ROLES = {"s": "system", "u": "user", "a": "assistant"}


def conversation(roles: str, *, truncate_history: bool = True) -> Request:
    """Messages of these roles, each of which says where it stood."""
    messages = tuple(Message(ROLES[role], Text(str(i))) for i, role in enumerate(roles))
    return replace(make_request(), messages=messages, truncate_history=truncate_history)


@pytest.mark.parametrize(
    ("roles", "left"),
    [
        ("u", "0"),
        ("su", "01"),
        ("uau", "2"),
        ("suau", "03"),
        ("uauau", "234"),
        ("suauauau", "0567"),
        ("uu", "1"),
        ("suu", "02"),
        ("uuau", "123"),
        ("uuu", "12"),
        ("uaau", "3"),
        ("au", "1"),
        ("auau", "123"),
    ],
)
def test_the_older_half_of_the_turns_goes_and_the_question_stays(roles: str, left: str):
    request, num_messages = without_older_half(conversation(roles))
    assert "".join(message.content.text for message in request.messages) == left
    assert num_messages == len(roles) - len(left)


def test_nothing_goes_where_the_request_does_not_allow_it():
    request = conversation("uau", truncate_history=False)
    assert without_older_half(request) == (request, 0)
