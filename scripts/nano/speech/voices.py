"""The voices and speaking rates of the built-in voice, and the tokens of the prompt that choose
them."""

from __future__ import annotations

import math

ADA, BEN = VOICES = ("ada", "ben")
VOICE_TOKENS = {name: f"<voice:{name}>" for name in VOICES}
RATE_STEP = 1.08
RATES = tuple(RATE_STEP**k for k in range(-5, 7))
RATE_TOKENS = tuple(f"<rate:{rate:.2f}>" for rate in RATES)
MIN_RATE, MAX_RATE = RATES[0] / math.sqrt(RATE_STEP), RATES[-1] * math.sqrt(RATE_STEP)


def rate_token(speed: float) -> str:
    """The token of the rate that is nearest, by ratio."""
    return min(zip(RATES, RATE_TOKENS), key=lambda pair: abs(math.log(speed / pair[0])))[1]
