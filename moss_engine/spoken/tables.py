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
COUNTED = {"fig": "figure", "Fig": "Figure", "p": "page", "ch": "chapter"}
"""Abbreviations before a number alone."""
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
SHOUTED = frozenset(
    "HI YES NO NOT NEVER EVER VERY ALL ANY AND BUT THE THIS THAT THESE THOSE WHAT WHEN WHERE WHY HOW YOU YOUR ME MY WE "
    "OUR HE SHE HIS HER THEY THEM ONLY JUST MUCH MORE MOST MUST WILL CAN CANT DONT DO DOES DID HAS HAVE HAD WAS "
    "WERE ARE IS BE BEEN GO GOES GOOD GREAT BAD BEST BIG NEW OLD HOT COLD LOVE HATE HELP STOP START WAIT LOOK COME "
    "GIVE TAKE MAKE HELLO HEY BYE WOW OH AH HA HAHA THANK FREE SALE NOW HERE THERE OPEN CLOSE UP DOWN OUT OFF OVER "
    "TOO ALSO SOME NONE EVERY BOTH REAL TRUE FALSE RIGHT WRONG FIRST LAST NEXT ONE TWO THREE HAPPY LIFE WORLD TODAY "
    "NIGHT READ SAY SPEAK TALK TEST LOUD QUIET FAST SLOW HARD EASY DEAR SORRY HOPE WISH WELL SO OR IF OF AT TO FOR "
    "WITH FROM BY BUY EAT MILK THEIR ABOUT AFTER AGAIN AWAY BACK BEGIN CALL EACH END FIND FIRE HOME HOUSE KEEP KIND "
    "KNOW LEAVE LEFT LET LIVE LONG MAN MAY MIND MONEY NAME NEED ONCE PLAY PUT RUN SAFE SAID SAME SEE SHALL SHOW "
    "SLEEP SUN TELL THAN THEN THING THINK TIME TRY TURN USE WALK WANT WAR WATER WEEK WHICH WORD WORK WRITE YEAR YEP "
    "NOPE GOT GET DAY DOG CAT".split()
)
"""Words of up to five letters that are emphasised by capitals rather than spelt."""
CHAT_FORMS = {"ur": "your", "pls": "please", "plz": "please", "thx": "thanks",
              "btw": "by the way", "idk": "I don't know", "imho": "in my humble opinion", "bc": "because"}
SENTENCE_STARTERS = frozenset(
    "The A An It He She They We You I In On At But And Then This That These Those There Here When If So My Our "
    "His Her Its What Who Why How Is Are Was Were Do Does Did No Yes Not Now Please For From To As By".split()
)
SYMBOLS = {
    "&": " and ", "+": " plus ", "=": " equals ", "@": " at ", "%": " percent ", "×": " times ", "÷": " divided by ",
    "±": " plus or minus ", "§": " section ", "°": " degrees ", "$": " dollars ", "€": " euros ", "£": " pounds ",
    "¥": " yen ", "₹": " rupees ", "~": " ", "©": " ", "®": " ", "™": " ", "•": ", ", "|": ", ", "_": " ",
    "…": "... ", "²": " squared ", "³": " cubed ", "¢": " cents ", "№": " number ", "≈": " about ", "∞": " infinity ",
    "√": " square root of ", "π": " pi ", "\\": " backslash ",
}
QUOTES = str.maketrans({
    "’": "'", "‘": "'", "ʼ": "'", "`": "'", "´": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "–": "-",
    "‐": "-", "‑": "-", "−": "-", "⁄": "/", "\xa0": " ", "\u2028": "\n", "\u2029": "\n\n",
})
# fmt: on
