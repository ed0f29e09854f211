"""Word tables of `spoken_text`: abbreviations, signs, units of measure, and words that a
reader knows by sight."""

from __future__ import annotations

# fmt: off
TITLES = {
    "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Prof": "Professor", "Capt": "Captain",
    "Lt": "Lieutenant", "Col": "Colonel", "Gen": "General", "Sen": "Senator",
    "Rep": "Representative", "Gov": "Governor", "Sgt": "Sergeant", "Rev": "Reverend",
    "Hon": "Honorable", "Pres": "President", "Mt": "Mount", "Ft": "Fort",
    "Maj": "Major", "Cpl": "Corporal", "Pvt": "Private", "Adm": "Admiral", "Cmdr": "Commander",
    "Det": "Detective", "Sens": "Senators", "Reps": "Representatives", "Drs": "Doctors",
    "Messrs": "Messers", "Insp": "Inspector", "Supt": "Superintendent", "Amb": "Ambassador",
}
ABBREVIATIONS = {
    "vs": "versus", "etc": "et cetera", "approx": "approximately", "dept": "department",
    "est": "established", "Jr": "Junior", "Sr": "Senior", "Inc": "Incorporated", "Ltd": "Limited",
    "Corp": "Corporation", "Co": "Company", "Bros": "Brothers", "Ave": "Avenue",
    "Blvd": "Boulevard", "Rd": "Road", "Hwy": "Highway", "Apt": "Apartment", "Dept": "Department",
    "Univ": "University", "Assn": "Association", "Vol": "Volume", "vol": "volume", "Ch": "Chapter",
    "Jan": "January", "Feb": "February", "Aug": "August", "Sept": "September", "Oct": "October",
    "Nov": "November", "Dec": "December", "Mon": "Monday", "Tues": "Tuesday", "Thurs": "Thursday",
    "Apr": "April", "Jun": "June", "Jul": "July", "Sep": "September",
    "Tue": "Tuesday", "Wed": "Wednesday", "Thu": "Thursday",
    "Fri": "Friday", "cf": "compare", "pp": "pages", "misc": "miscellaneous", "temp": "temperature",
    "tel": "telephone", "Tel": "Telephone", "Sec": "Section", "Eq": "Equation", "Eqs": "Equations",
    "Figs": "Figures", "Nos": "Numbers", "nos": "numbers", "ca": "circa", "Esq": "Esquire",
    "max": "maximum", "min": "minimum", "avg": "average", "incl": "including",
    "excl": "excluding", "resp": "respectively", "intl": "international",
    "Intl": "International", "govt": "government", "Govt": "Government", "assoc": "associate",
    "ed": "editor", "eds": "editors", "viz": "namely", "esp": "especially", "feat": "featuring",
    "Feat": "Featuring", "equiv": "equivalent", "Approx": "Approximately", "Avg": "Average",
    "Misc": "Miscellaneous", "Incl": "Including", "orig": "originally", "qty": "quantity",
    "Qty": "Quantity", "wt": "weight", "amt": "amount", "appt": "appointment", "Sat": "Saturday",
    "asst": "assistant", "Asst": "Assistant", "Natl": "National", "bldg": "building",
    "Bldg": "Building", "Sq": "Square", "wk": "week", "yr": "year",
}
COUNTED = {
    "fig": "figure", "Fig": "Figure", "p": "page", "pg": "page", "ch": "chapter", "c": "circa",
    "Pt": "Part", "Art": "Article", "Ste": "Suite", "Op": "Opus", "Rm": "Room", "rm": "room",
    "chr": "chromosome", "ext": "extension", "Ext": "Extension", "ver": "version",
    "Ver": "Version", "Ps": "Psalm", "para": "paragraph", "Est": "Established", "Ep": "Episode",
    "ep": "episode",
}
"""Abbreviations before a number alone."""
DOTTED = {
    "e.g": "for example", "i.e": "that is", "a.k.a": "also known as", "ph.d": "P H D",
    "a.m": "A M", "p.m": "P M", "w.r.t": "with respect to",
}
WORD_FORMS = {
    "OK": "okay", "ok": "okay", "w/o": "without", "w/": "with", "and/or": "and or", "PhD": "P H D",
    "aka": "also known as", "b/c": "because", "c/o": "care of", "w/out": "without",
    ".NET": "dot net", "TL;DR": "T L D R", "w/e": "whatever",
    "y/o": "year old", "y/y": "year over year", "s/he": "she or he",
    "(s)he": "she or he", "n/a": "N A", "P!nk": "Pink",
    "Ke$ha": "Kesha",
}
CHAT_FORMS = {"ur": "your", "pls": "please", "plz": "please", "thx": "thanks",
              "btw": "by the way", "idk": "I don't "
                                          "know", "imho": "in my humble opinion", "bc": "because",
              "imo": "in my opinion", "brb": "be right back", "gtg": "got to go",
              "ttyl": "talk to you later", "tbh": "to be honest", "rn": "right now",
              "np": "no problem", "smh": "shaking my head", "ikr": "I know, right",
              "hbu": "how about you", "wbu": "what about you", "wyd": "what are you doing",
              "nvm": "never mind", "jk": "just kidding", "lmk": "let me know", "cya": "see you",
              "im": "I'm", "msg": "message", "msgs": "messages", "tmrw": "tomorrow",
              "ppl": "people", "abt": "about", "sry": "sorry", "omw": "on my way",
              "ngl": "not going to lie", "thnx": "thanks",
              "ty": "thank you", "yw": "you're welcome", "idc": "I don't care",
              "fwiw": "for what it's worth", "hmu": "hit me up"}
CHAT_FIGURES = {"l8r": "later", "gr8": "great", "b4": "before", "m8": "mate", "h8": "hate",
                "2day": "today", "2nite": "tonight", "2night": "tonight", "2moro": "tomorrow",
                "2morrow": "tomorrow", "w8": "wait", "str8": "straight", "WW1": "World War one",
                "WW2": "World War two"}
"""Words written with figures in place of sounds."""
SENTENCE_STARTERS = frozenset(
    "The A An It He She They We You I In On At But And Then This That These Those There Here When "
    "If So My Our "
    "His Her Its What Who Why How Is Are Was Were Do Does Did No Yes Not Now Please For From To "
    "As By It's I'm I'll I've I'd We're We've We'll They're You're He's She's That's There's "
    "Here's What's Let's Don't Didn't Doesn't Can't Let Also After Before While Although However "
    "Because Since Until Meanwhile Both Each Many Most Some All Another Every Our Their Your Once "
    "During Despite Or".split()
)
EMOJI = {
    "❤": "heart", "♥": "heart", "👍": "thumbs up", "👎": "thumbs down", "👌": "okay hand",
    "🙏": "folded hands", "😂": "tears of joy", "🤣": "rolling on the floor laughing",
    "😊": "smiling face", "😀": "grinning face", "😉": "winking face", "😢": "crying face",
    "😭": "crying face", "😍": "heart eyes", "😎": "cool face", "🤔": "thinking face",
    "🔥": "fire", "✔": "check mark", "✅": "check mark", "❌": "cross mark", "⭐": "star",
    "★": "star", "☆": "star", "☀": "sun", "☕": "coffee", "⚠": "warning",
    "💯": "one hundred points", "✨": "sparkles", "👏": "clapping hands",
    "🎉": "party popper", "☺": "smiling face",
    "➡": "right arrow", "⬅": "left arrow", "⬆": "up arrow", "⬇": "down arrow",
    "Ω": "ohm",
    "✓": "check mark", "✗": "cross mark", "✘": "cross mark", "♪": "music note",
    "♫": "music notes", "☎": "telephone", "✉": "envelope",
}
"""Signs whose name by Unicode nobody would say."""
SYMBOLS = {
    "&": " and ", "+": " plus ", "=": " equals ", "@": " at ", "%": " percent ", "×": " times ",
    "÷": " divided by ",
    "±": " plus or "
         "minus ", "§": " section ", "°": " degrees ", "$": " dollars ", "€": " euros ",
         "£": " pounds ", "¥": " yen ", "₹": " rupees ", "~": " ", "©": " ", "®": " ", "™": " ",
         "•": ", ", "|": ", ", "_": " ", "…": "... ", "²": " squared ", "³": " cubed ",
         "¢": " cents ", "№": " number ", "≈": " about ", "∞": " infinity ",
         "√": " square root of ", "π": " pi ", "\\": " backslash ",
         "µ": " micro ", "¶": " paragraph ", "†": " ", "‡": " ",
}
QUOTES = str.maketrans({
    "’": "'", "‘": "'", "ʼ": "'", "`": "'", "´": "'", "“": '"', "”": '"', "„": '"', "«": '"',
    "»": '"', "–": "-", "—": " -- ", "―": " -- ",
    "‐": "-", "‑": "-", "−": "-", "⁄": "/", "\xa0": " ", "\u2028": "\n", "\u2029": "\n\n",
})
UNITS = {
    "kg": "kilogram", "g": "gram", "mg": "milligram", "µg": "microgram", "mcg": "microgram",
    "lb": "pound", "lbs": "pound", "oz": "ounce", "km": "kilometer", "m": "meter",
    "cm": "centimeter", "mm": "millimeter", "µm": "micrometer", "nm": "nanometer", "mi": "mile",
    "ft": "foot", "yd": "yard", "sq ft": "square foot", "sq. ft": "square foot",
    "sq mi": "square mile", "sq. mi": "square mile", "cu ft": "cubic foot", "cu. ft": "cubic foot",
    "cu in": "cubic inch", "cu. in": "cubic inch", "km²": "square kilometer", "m²": "square meter",
    "cm²": "square centimeter", "km2": "square kilometer", "m2": "square meter", "ha": "hectare",
    "m³": "cubic meter", "m3": "cubic meter", "cm³": "cubic centimeter", "cc": "cubic centimeter",
    "l": "liter", "L": "liter", "ml": "milliliter", "mL": "milliliter", "gal": "gallon",
    "qt": "quart", "qts": "quart", "fl oz": "fluid ounce", "fl. oz": "fluid ounce",
    "tbsp": "tablespoon", "tsp": "teaspoon", "Tbsp": "tablespoon", "Tsp": "teaspoon",
    "TBSP": "tablespoon", "TSP": "teaspoon", "dl": "deciliter", "dL": "deciliter",
    "cl": "centiliter", "yr": "year", "yrs": "year", "wk": "week", "wks": "week", "mos": "month",
    "pts": "point", "sqft": "square foot", "µL": "microliter", "µl": "microliter",
    "µF": "microfarad", "µA": "microamp", "µV": "microvolt", "µW": "microwatt",
    "km/hr": "kilometer per hour", "h": "hour", "hr": "hour",
    "hrs": "hour", "min": "minute", "mins": "minute", "s": "second", "sec": "second",
    "secs": "second", "ms": "millisecond", "µs": "microsecond", "ns": "nanosecond", "Hz": "hertz",
    "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz", "THz": "terahertz",
    "kB": "kilobyte", "KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte",
    "PB": "petabyte", "KiB": "kibibyte", "MiB": "mebibyte", "GiB": "gibibyte", "TiB": "tebibyte",
    "Kb": "kilobit", "Mb": "megabit", "Gb": "gigabit", "kbit": "kilobit", "Mbit": "megabit",
    "Gbit": "gigabit", "kbps": "kilobit per second", "Kbps": "kilobit per second",
    "Mbps": "megabit per second", "Gbps": "gigabit per second", "W": "watt", "mW": "milliwatt",
    "kW": "kilowatt", "MW": "megawatt", "GW": "gigawatt", "Wh": "watt hour", "kWh": "kilowatt hour",
    "MWh": "megawatt hour", "V": "volt", "mV": "millivolt", "kV": "kilovolt", "mA": "milliamp",
    "mAh": "milliamp hour", "Ah": "amp hour", "Ω": "ohm", "kΩ": "kiloohm", "MΩ": "megaohm",
    "dB": "decibel", "kcal": "kilocalorie", "cal": "calorie", "kJ": "kilojoule", "Pa": "pascal",
    "kPa": "kilopascal", "hPa": "hectopascal", "MPa": "megapascal", "psi": "pound per square inch",
    "mmHg": "millimeter of mercury", "km/h": "kilometer per hour", "kmh": "kilometer per hour",
    "kph": "kilometer per hour", "mph": "mile per hour", "mpg": "mile per gallon",
    "m/s": "meter per second", "ft/s": "foot per second", "m/s²": "meter per second squared",
    "kB/s": "kilobyte per second", "KB/s": "kilobyte per second", "MB/s": "megabyte per second",
    "GB/s": "gigabyte per second", "TB/s": "terabyte per second", "MiB/s": "mebibyte per second",
    "GiB/s": "gibibyte per second", "kbit/s": "kilobit per second", "Mbit/s": "megabit per second",
    "Gbit/s": "gigabit per second", "g/cm³": "gram per cubic centimeter",
    "kg/m³": "kilogram per cubic meter", "mg/L": "milligram per liter",
    "mg/dL": "milligram per deciliter", "mg/kg": "milligram per kilogram", "W/m²": "watt per "
    "square meter", "fps": "frame per second", "dpi": "dot per inch", "ppi": "pixel per inch",
    "rpm": "revolution per minute", "bpm": "beat per minute", "wpm": "word per minute",
    "px": "pixel", "°C": "degree Celsius", "°F": "degree Fahrenheit", "°": "degree",
    "yds": "yard", "lm": "lumen", "mEq/L": "milliequivalent per liter", "ppm": "part per million",
    "ppb": "part per billion", "kDa": "kilodalton", "mM": "millimolar", "µM": "micromolar",
    "nM": "nanomolar", "MP": "megapixel", "mol": "mole", "mmol": "millimole", "ng": "nanogram",
    "mmol/L": "millimole per liter", "mg/mL": "milligram per milliliter",
    "µg/mL": "microgram per milliliter", "ng/mL": "nanogram per milliliter", "ft²": "square foot",
    "ft2": "square foot", "in²": "square inch", "mi²": "square mile", "hp": "horsepower",
    "TWh": "terawatt hour", "kg/m²": "kilogram per square meter", "bps": "bit per second",
    "sq km": "square kilometer", "sq. km": "square kilometer", "sq m": "square meter",
    "kJ/mol": "kilojoule per mole", "kcal/mol": "kilocalorie per mole", "g/mol": "gram per mole",
    "kg/m2": "kilogram per square meter",
}
DOTTED_UNITS = ("ft", "in", "lb", "lbs", "oz", "yd", "mi", "sq. ft", "sq ft", "cu. in", "cu. ft",
           "sq. mi", "min", "mins", "sec", "secs", "hr", "hrs", "gal", "qt", "tbsp", "tsp",
           "Tbsp", "Tsp", "fl. oz", "fl oz", "qts", "yr", "yrs", "wk", "wks", "mos", "pts")
UNITS_ALONE = ("KiB", "MiB", "GiB", "TiB", "GHz", "MHz", "kHz", "Hz", "km/h", "mph", "mpg", "kWh",
          "Mbps", "Gbps", "MB/s", "GB/s", "GiB/s", "mmHg", "rpm", "dB")
"""Units that are said in the plural where no number stands before them."""
# fmt: on
