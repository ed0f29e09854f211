"""What the page measured of its last answer, for those who ask how fast it is. Pure."""

from __future__ import annotations

import re

from moss_engine.api.metrics import RequestMetrics
from moss_engine.talk.tools.wording import bare

_FAST = (
    r"how (?:fast|quick) (?:are you|is this|is it|was that|do you (?:answer|speak|work))"
    r"|how long (?:did|does) (?:that|it|this|an answer) take|how long did you (?:need|take|think)"
    r"|what is your (?:latency|speed|delay)|(?:what is )?the latency|how much delay is there"
)
_REAL = (
    r"(?:is|are) (?:this|that|it|you) (?:in |really )?real[- ]?time"
    r"|do you (?:answer|speak|work|run) in real[- ]?time"
    r"|does (?:this|it) (?:run|work) in real[- ]?time|real[- ]?time"
)


def answer(question: str, last: RequestMetrics | None) -> str | None:
    """Figures of the answer before this one, where there was one that made sound."""
    text = bare(question)
    if not re.fullmatch(f"{_FAST}|{_REAL}", text):
        return None
    known = last is not None and last.ttfa_ms is not None and last.rtf
    if not known:
        begins = "Yes, this" if re.fullmatch(_REAL, text) else "This"
        return (
            f"{begins} is real time: you hear an answer while it is still being made. Ask me again "
            "after this one, and I tell you how fast it was."
        )
    assert last is not None and last.ttfa_ms is not None and last.rtf
    begins = "Yes. " if re.fullmatch(_REAL, text) else ""
    return (
        f"{begins}The first sound of my last answer was ready after {last.ttfa_ms / 1000:.2f} "
        f"seconds, and I made it {1 / last.rtf:.1f} times as fast as it is spoken."
    )
