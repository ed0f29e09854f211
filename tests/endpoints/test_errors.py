"""Refusals of the service, as programs are told of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moss_engine.api.errors import BrainError, BusyError, MossError, ParameterError, error_of
from moss_engine.api.validation import check_sampling
from moss_engine.endpoints.bodies import parse
from moss_engine.endpoints.errors import ApiError, of_failure, of_moss
from moss_engine.endpoints.speech import SpeechBody
from tests.ui.page_support import INFO

SAMPLING = INFO.sampling
HOT, NARROW = replace(SAMPLING.text, temperature=3.0), replace(SAMPLING.text, top_p=0.0)


@pytest.mark.parametrize(
    ("sampling", "sentence"),
    [
        (replace(SAMPLING, text=HOT), "temperature is 3; give a number from 0 to 2."),
        (replace(SAMPLING, text=NARROW), "top_p is 0; give a number from 0.01 to 1."),
        (
            replace(SAMPLING, seed=2**63),
            f"seed is {2**63}; give a whole number from 0 to {2**63 - 1}.",
        ),
    ],
)
def test_a_sentence_names_the_field_that_the_program_sent(sampling, sentence):
    with pytest.raises(ParameterError) as caught:
        check_sampling(sampling)
    refusal = of_moss(caught.value)
    assert (refusal.message, refusal.param) == (sentence, sentence.partition(" ")[0])


def test_a_long_name_of_an_unknown_field_is_not_repeated_whole():
    with pytest.raises(ApiError) as caught:
        parse('{"model": "m", "input": "i", "' + "x" * 100_000 + '": 1}', SpeechBody)
    assert caught.value.code == "unknown_field"
    assert len(str(caught.value.value())) < 500 and "xxx is not served" in caught.value.message


@pytest.mark.parametrize(
    ("code", "kind"),
    [("E_BUSY", BusyError), ("E_BRAIN", BrainError), ("E_PARAM", ParameterError),
     ("E_MOSS", MossError), ("E_LATER", MossError)],
)  # fmt: skip
def test_a_failure_is_the_error_of_its_code(code, kind):
    error = error_of(code, "It is so; ask again.")
    assert type(error) is kind and str(error) == "It is so; ask again."
    told = of_failure(code, str(error))
    assert (told.code, told.message) == (kind.code, "It is so; ask again.")
