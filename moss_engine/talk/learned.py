"""What the checkpoint's own network was taught, told by how it is asked; everything else it would
make up. Pure."""

from __future__ import annotations

import re

from moss_engine.talk.tools.wording import bare, unquoted

# Of what it was not taught it would make up a capital or an opposite.
_COUNTRIES = (
    "afghanistan|albania|algeria|armenia|australia|austria|azerbaijan|bangladesh|belarus"
    "|belgium|botswana|brazil|bulgaria|cambodia|cameroon|canada|chad|chile|china|colombia"
    "|croatia|cuba|cyprus|denmark|ecuador|egypt|estonia|ethiopia|finland|france|georgia|germany"
    "|ghana|greece|haiti|honduras|hungary|iceland|india|indonesia|iran|iraq|ireland"
    "|israel|italy|jamaica|japan|jordan|kazakhstan|kenya|kuwait|latvia|lebanon"
    "|lithuania|luxembourg|mali|malta|mexico|mongolia|morocco|namibia|nepal"
    "|new zealand|nicaragua|niger|nigeria|norway|oman|pakistan|panama|paraguay|peru|poland"
    "|portugal|qatar|romania|russia|rwanda|saudi arabia|senegal|slovakia|slovenia|somalia"
    "|spain|sudan|sweden|switzerland|thailand|tunisia|turkey|uganda|ukraine"
    "|united kingdom|united states|uruguay|venezuela|vietnam|yemen|zambia|zimbabwe"
)
_OPPOSED = (
    "hot|cold|big|small|old|young|new|fast|slow|high|low|up|down|left|day|night|black|white|good"
    "|bad|rich|poor|long|wet|dry|hard|soft|dark|early|late|open|closed|full|empty|happy"
    "|sad|strong|weak|thick|thin|wide|narrow|deep|shallow|loud|quiet|clean|dirty|cheap|expensive"
    "|easy|difficult|first|last|inside|outside|above|below|before|after|always|never|all|none"
    "|begin|end|start|stop|buy|sell|give|take|push|pull|come|go|love|hate|laugh|cry|win|lose"
    "|remember|forget|true|false|near|far|north|south|east|west|summer|winter|sharp|dull|smooth"
    "|rough|sweet|sour|tall|safe|dangerous|wrong|front|back|top|bottom|question|answer|friend"
    "|enemy|heaven|earth|more|less|many|few|awake|asleep|alive|dead|brave|afraid|polite|rude|same"
    "|different|straight|crooked|tight|loose|heavy|kind|mean"
)
_DAYS = "monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_POINTED = "(?:that|this|it)"
_KNOWN = re.compile(
    r"(?:what|which) (?:(?:day|month) )?(?:is|comes|follows)?(?: the)?"
    rf"(?: (?:next )?(?:day|month))? ?(?:comes )?(?:after|before|follows) (?:{_DAYS}|{_MONTHS})"
    rf"|(?:what|which) is the (?:first|second|third|fourth|fifth|sixth|seventh) day"
    r"|(?:what|which) is the (?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth"
    r"|eleventh|twelfth) month"
    rf"|how many days (?:are|has|does)(?: there)?(?: in)? (?:{_MONTHS})(?: have)?"
    rf"|(?:(?:what|which) (?:city )?is )?the capital(?: city)? of (?:the )?(?:{_COUNTRIES})"
    rf"|capital of (?:the )?(?:{_COUNTRIES})"
    rf"|(?:(?:what|which) is )?(?:the )?opposite of (?:{_OPPOSED})"
    rf"|what does (?:the word )?(?!{_POINTED} mean)[a-z]+ mean"
    rf"|what is the meaning of (?:the word )?(?!life|{_POINTED}$)[a-z]+"
    rf"|define (?:the word )?(?!{_POINTED}$)[a-z]+"
)
_FORMS = (
    (r"^define (?:the word )?(\w+)$", r"What does \1 mean?"),
    (r"^what is the meaning of (?:the word )?(\w+)$", r"What does \1 mean?"),
    (r"^what does the word (\w+) mean$", r"What does \1 mean?"),
    (r"^(?:the )?opposite of (\w+)$", r"What is the opposite of \1?"),
    (r"^(?:the )?capital of ([\w ]+)$", r"What is the capital of \1?"),
    (r"^.*\bcapital(?: city)? of ([\w ]+)$", r"What is the capital of \1?"),
)


def question(text: str) -> str | None:
    """The question as the network was taught it, or None where it was not."""
    asked = unquoted(bare(text)).strip()
    if not _KNOWN.fullmatch(asked):
        return None
    asked = re.sub(rf"\b(?:{_DAYS}|{_MONTHS})\b", lambda name: name[0].capitalize(), asked)
    asked = re.sub(r"(?<=capital of )[a-z ]+|(?<=capital city of )[a-z ]+", _place, asked)
    for pattern, form in _FORMS:
        if found := re.match(pattern, asked):
            return found.expand(form)
    return f"{asked[:1].upper()}{asked[1:]}?"


def _place(found: re.Match[str]) -> str:
    """the united states of america -> the United States of America"""
    return " ".join(
        word if word in ("the", "of", "and") else word.capitalize() for word in found[0].split()
    )
