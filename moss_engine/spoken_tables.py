"""Word tables of `spoken_text`: abbreviations, signs, and words that a reader knows by sight."""

from __future__ import annotations

# fmt: off
TITLES = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Prof": "Professor", "Capt": "Captain", "Lt": "Lieutenant",
    "Col": "Colonel", "Gen": "General", "Sen": "Senator", "Rep": "Representative", "Gov": "Governor",
    "Sgt": "Sergeant", "Rev": "Reverend", "Hon": "Honorable", "Pres": "President", "Mt": "Mount", "Ft": "Fort",
}
ABBREVIATIONS = {
    "vs": "versus", "etc": "et cetera", "approx": "approximately", "dept": "department", "est": "established",
    "Jr": "Junior", "Sr": "Senior", "Inc": "Incorporated", "Ltd": "Limited", "Corp": "Corporation", "Co": "Company",
    "Bros": "Brothers", "Ave": "Avenue", "Blvd": "Boulevard", "Rd": "Road", "Hwy": "Highway", "Apt": "Apartment",
    "Dept": "Department", "Univ": "University", "Assn": "Association", "Vol": "Volume", "vol": "volume",
    "Ch": "Chapter", "Jan": "January", "Feb": "February", "Aug": "August", "Sept": "September", "Oct": "October",
    "Nov": "November", "Dec": "December", "Mon": "Monday", "Tues": "Tuesday", "Thurs": "Thursday", "Fri": "Friday",
    "cf": "compare", "pp": "pages", "misc": "miscellaneous", "temp": "temperature", "tel": "telephone",
    "Tel": "Telephone",
}
DOTTED = {
    "e.g.": "for example", "i.e.": "that is", "a.k.a.": "also known as", "ph.d.": "P H D", "a.m.": "A M",
    "p.m.": "P M",
}
WORD_FORMS = {
    "OK": "okay", "ok": "okay", "w/o": "without", "w/": "with", "and/or": "and or", "PhD": "P H D",
    "aka": "also known as",
}
SAID_AS_WORDS = frozenset(
    "NASA NATO AIDS UNESCO UNICEF OPEC FIFA NAFTA RAM ROM LASER RADAR SCUBA PIN SIM GIF JPEG LAN WAN FEMA OSHA "
    "SWAT ZIP IKEA LEGO BASIC COBOL ASCII COVID".split()
)
SENTENCE_STARTERS = frozenset(
    "The A An It He She They We You I In On At But And Then This That These Those There Here When If So My Our "
    "His Her Its What Who Why How Is Are Was Were Do Does Did No Yes Not Now Please For From To As By".split()
)
SYMBOLS = {
    "&": " and ", "+": " plus ", "=": " equals ", "@": " at ", "%": " percent ", "×": " times ", "÷": " divided by ",
    "±": " plus or minus ", "§": " section ", "°": " degrees ", "$": " dollars ", "€": " euros ", "£": " pounds ",
    "¥": " yen ", "₹": " rupees ", "~": " ", "©": " ", "®": " ", "™": " ", "•": ", ", "|": ", ", "_": " ",
    "…": "... ", "²": " squared ", "³": " cubed ",
}
QUOTES = str.maketrans({
    "’": "'", "‘": "'", "ʼ": "'", "`": "'", "´": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "–": "-",
    "‐": "-", "‑": "-", "−": "-", "⁄": "/", "\xa0": " ", "\u2028": "\n", "\u2029": "\n\n",
})
# fmt: on
