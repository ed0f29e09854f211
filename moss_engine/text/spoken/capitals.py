"""Capital letters: which words are spelt, which are said, which are only loud. Pure."""

from __future__ import annotations

import re

# fmt: off
_RESPELT = {
    "JSON": "Jason", "YAML": "Yammel", "TOML": "Tommel", "SAML": "Sammel", "SCSI": "Scuzzy",
    "JPEG": "Jay peg", "MPEG": "M peg", "IEEE": "I triple E", "AAA": "triple A",
    "NAACP": "N double A C P", "NCAA": "N C double A", "LaTeX": "Lay tek", "TeX": "tek",
    "AFAIK": "as far as I know", "IIRC": "if I remember correctly", "TODO": "to do",
    "FIXME": "fix me", "OAuth": "O auth", "SaaS": "sass", "NaN": "nan", "nginx": "engine X",
    "stdin": "standard in", "stdout": "standard out", "stderr": "standard error",
    "STDIN": "standard in", "STDOUT": "standard out", "STDERR": "standard error",
    "BSc": "B S C", "MSc": "M S C", "PhD": "P H D", "DPhil": "D Phil",
    "USAID": "U S aid", "dBm": "D B M", "iOS": "I O S", "SQLite": "S Q L light", "libc": "lib C",
    "GUI": "gooey", "WYSIWYG": "wizzy wig", "EPROM": "E prom", "EEPROM": "double E prom",
    "Ctrl": "control", "CTRL": "control", "str": "string", "WWI": "World War one",
    "WWII": "World War two", "YoY": "year over year", "QoQ": "quarter over quarter",
    "MoM": "month over month", "MiG": "Mig", "NVMe": "N V M E", "NaCl": "N A C L",
    "IoT": "I O T",
}
"""What a reader says for them; it is also what is shown."""
_SAID_AS_WORDS = frozenset(
    "NASA NATO AIDS UNESCO UNICEF OPEC FIFA NAFTA RAM ROM LASER RADAR SCUBA PIN SIM GIF LAN "
    "WAN FEMA OSHA SWAT ZIP IKEA LEGO BASIC COBOL ASCII COVID MIME POSIX FORTRAN SONAR CAPTCHA "
    "UNIX LINUX CAD NAS MAC DOS TAR JIT RAID BIOS CUDA NUMA SATA ANSI LIDAR SARS MERS ZOOM VISA "
    "AMEX ASEAN RISC CISC PEP INTERPOL DEBIAN UBUNTU JAVA PERL BASH CRON GREP".split()
)
_SPELT = frozenset(
    "USA UK EU UN US FBI CIA NSA IRS CPU GPU USB SSD HDD API URL URI HTML CSS XML SQL PDF DNA RNA "
    "CEO CFO CTO TV PC CD DVD ATM GPS FAQ VIP DIY ID IQ HR PR AI ML UI UX OS IP TCP UDP HTTP HTTPS "
    "FTP SSH DNS DHCP LCD LED HD UHD BBC CNN NBC ABC CBS ESPN NBA NFL NHL MLB MIT UCLA USDA ACLU "
    "AARP NYPD LAPD NYSE UEFI USAF USMC RSVP ASAP OMG WTF FYI BTW ETA TBD TBA AKA SOS IOU BMW IBM "
    "HP GM GE AM PM AC DC BC AD MD PHD BA MA MBA JR UTC GMT EST PST CST EDT PDT GDP GDB GCC "
    "GNU GUID ISO IDE CLI SDK VM VPN SUV UFO PTA IRA NRA EPA FDA FCC FTC CDC WHO IMF NGO HIV ADHD "
    "PTSD MRI ICU CPR UCSD USPS UPS GRE GMAT IPO CMD ESC CTRL RGB CMYK UUID FPS RPG MMO YMCA "
    "YWCA".split()
) - {"AM", "AD", "WHO", "US", "JR", "ESC"}
"""Acronyms that stay letters where everything is in capitals, or could be taken for a word."""
_SPELT_IN_SMALL_LETTERS = frozenset(
    "api apis url urls usb cpu cpus gpu gpus faq ai ui ux uk usa eu ufo ip atm iq ceo suv omg imo "
    "diy ssd pdfs html xhtml https dvds cds tvs utf".split()
)
_SHOUTED = frozenset(
    "HI YES NO NOT NEVER EVER VERY ALL ANY AND BUT THE THIS THAT THESE THOSE WHAT WHEN WHERE WHY "
    "HOW YOU YOUR ME MY WE "
    "OUR HE SHE HIS HER THEY THEM ONLY JUST MUCH MORE MOST MUST WILL CAN CANT DONT DO DOES DID "
    "HAS HAVE HAD WAS "
    "WERE ARE IS BE BEEN GO GOES GOOD GREAT BAD BEST BIG NEW OLD HOT COLD LOVE HATE HELP STOP "
    "START WAIT LOOK COME "
    "GIVE TAKE MAKE HELLO HEY BYE WOW OH AH HA HAHA THANK FREE SALE NOW HERE THERE OPEN CLOSE UP "
    "DOWN OUT OFF OVER "
    "TOO ALSO SOME NONE EVERY BOTH REAL TRUE FALSE RIGHT WRONG FIRST LAST NEXT ONE TWO THREE "
    "HAPPY LIFE WORLD TODAY "
    "NIGHT READ SAY SPEAK TALK TEST LOUD QUIET FAST SLOW HARD EASY DEAR SORRY HOPE WISH WELL SO "
    "OR IF OF AT TO FOR "
    "WITH FROM BY BUY EAT MILK THEIR ABOUT AFTER AGAIN AWAY BACK BEGIN CALL EACH END FIND FIRE "
    "HOME HOUSE KEEP KIND "
    "KNOW LEAVE LEFT LET LIVE LONG MAN MAY MIND MONEY NAME NEED ONCE PLAY PUT RUN SAFE SAID SAME "
    "SEE SHALL SHOW "
    "SLEEP SUN TELL THAN THEN THING THINK TIME TRY TURN USE WALK WANT WAR WATER WEEK WHICH WORD "
    "WORK WRITE YEAR YEP "
    "NOPE GOT GET DAY DOG CAT IN ON AS AN IT AM NOTE LET LOST SET BOX BUS CAR EGG END ICE JOB LAW "
    "LOT LOW MAP MEN MIX OWN PAY PER RED RID ROW SAD SEA SIR SIX TEN TOP TWO VAN WAR WAY WIN WON "
    "YET AGE AIR ART ASK BED BIT BOY CUP EAR EYE FEW FIX FUN GUY HAT HIT ITS KEY LEG LIE OIL OUR "
    "PEN POP RAW SIT SKY SON TEA TIE TOE VIA WHY ZOO MAX MEAN ADD USED CANT WONT ISNT AINT LETS "
    "THATS".split()
)
"""Words of up to five letters that are emphasised by capitals rather than spelt."""


_ONSET = (
    "(?:[bcdfghjklmnprstvwyz]|bl|br|ch|cl|cr|dr|fl|fr|gl|gr|kl|kr|ph|pl|pr|qu|sc|sch|scr|sh|sk|sl|"
    "sm|sn|sp|spl|spr|st|str|sw|th|thr|tr|tw|wh|wr)?"
)
_CODA = (
    "(?:[bcdfgklmnprstwxz]|ck|ct|ff|ft|gh|ld|lf|lk|ll|lm|lp|lt|mp|nd|ng|nk|nt|pt|rd|rk|rl|rm|rn|"
    "rp|rt|sh|sk|sp|ss|st|th|tch|zz)?s?"
)
_SAYABLE = re.compile(f"{_ONSET}[aeiouy]{{1,2}}(?:[a-z]{{1,2}}[aeiou]{{1,2}})*{_CODA}e?")
_JOINT = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WHOLE_NAME = re.compile(r"(?:Mc|Mac|Fitz|De|Di|Du|La|Le|Van|Von|O)[A-Z][a-z]+(?:'s?)?")
_NO_VOWEL_YET_SAID = re.compile(
    r"(?i)h?m{2,}|h?mm+h?|sh+|ts+k?|nth|br+|ps+t|pf+t|gr+|z+|[nr]d|st|th"
)


def unshout(text: str) -> str:
    """A text in capitals is read as words; a line of acronyms stays one."""
    words = re.findall(r"[A-Za-z]{2,}", text)
    if len(words) < 2 or sum(w.isupper() for w in words) <= 0.7 * len(words):
        return text
    loud = [w for w in words if w.isupper() and (w in _SHOUTED or _is_long(w))]
    if len(loud) < 0.3 * len(words):
        return text
    return re.sub(r"[A-Za-z']+", lambda m: m[0] if _stays(m[0]) else m[0].lower(), text)


def _is_long(word: str) -> bool:
    return len(word) > 5 and word not in _SAID_AS_WORDS and bool(re.search("[AEIOUY]", word))


def _stays(word: str) -> bool:
    return word in _SPELT or word in _RESPELT or word in _SAID_AS_WORDS or word == "I"


def say_capitals(word: str, begins: bool) -> str | None:
    """What is said for a word by its letters' case; None where that decides nothing. `begins`: it
    is the first of a sentence."""
    if word in _RESPELT:
        return _RESPELT[word]
    plural = re.fullmatch(r"([A-Z]{2,5})('?s)", word)
    stem, ending = (plural[1], "'s") if plural else (word, "")
    if word in _SHOUTED or ("'" in word and word.isupper()):
        return word.capitalize() if begins else word.lower()
    if stem.isalpha() and stem.isupper() and len(stem) > 1:
        return _say_upper(stem, ending, begins)
    if word in _SPELT_IN_SMALL_LETTERS or has_no_vowel(word):
        return " ".join(word.upper())
    if re.search("[a-z][A-Z]|[A-Z]{2}[a-z]", word) and not _WHOLE_NAME.fullmatch(word):
        return _parts(word)
    return None


def _say_upper(stem: str, ending: str, begins: bool) -> str:
    if stem in _RESPELT:
        return _RESPELT[stem] + ending
    if stem in _SPELT or not (stem in _SAID_AS_WORDS or _is_sayable(stem)):
        return " ".join(stem) + ending
    if stem in _SAID_AS_WORDS or begins or ending:
        return stem.capitalize() + ending
    return stem.lower()


def _is_sayable(stem: str) -> bool:
    """Four letters or more that can be an English word: those are rarely spelt."""
    if len(stem) > 5:
        return bool(re.search("[AEIOUY]", stem))
    return len(stem) > 3 and bool(_SAYABLE.fullmatch(stem.lower()))


def has_no_vowel(word: str) -> bool:
    """Nothing that can be said as a word: no vowel, or too few."""
    if not word.isalpha() or len(word) == 1 or word.lower() in ("mr", "mrs", "ms", "dr"):
        return False
    if re.search("[aeiouyAEIOUY]", word):
        return bool(re.search("(?i)[^aeiouy]{7}", word))
    return not _NO_VOWEL_YET_SAID.fullmatch(word)


def _parts(word: str) -> str:
    """maxLen -> "max len", PostgreSQL -> "Postgre SQL"."""
    parts = _JOINT.sub(" ", word).split(" ")
    if parts[0].islower() and len(parts[0]) > 1:
        parts = [p if p.isupper() else p.lower() for p in parts]
    return " ".join(parts)
