"""Written English -> spoken words, and its cutting into sentences."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moss_engine.text.spoken.cardinals import cardinal, digits, ordinal, year
from moss_engine.text.spoken.numbers import numbers_to_words
from moss_engine.text.spoken.sentences import as_sentence, split_sentences
from moss_engine.text.spoken.text import MAX_WORD_LETTERS, spoken_text

TABLE = {
    # numbers
    (
        "I have 3 cats and 1,234 dogs."
    ): "I have three cats and one thousand two hundred thirty-four dogs.",
    "It is -5 outside, or 0.": "It is minus five outside, or zero.",
    "Pi is 3.14159.": "Pi is three point one four one five nine.",
    "50% of 2.5%": "fifty percent of two point five percent",
    "In 1999, 2005 and 2026.": "In nineteen ninety-nine, two thousand five and twenty twenty-six.",
    "The 1990s and the '80s.": "The nineteen nineties and the eighties.",
    "1st, 2nd, 3rd and 22nd": "first, second, third and twenty-second",
    "1/2 cup, 3/4 mile, 2 1/2 hours": "one half cup, three quarters mile, two and a half hours",
    "pages 5-10": "pages five to ten",
    "1990-1995": "nineteen ninety to nineteen ninety-five",
    "v1.2.3": "v one point two point three",
    "code 0042": "code zero zero four, two",
    "3 + 4 = 7": "three plus four equals seven",
    "5*3": "five times three",
    "What is 7 - 3?": "What is seven minus three?",
    "12-5 = ?": "twelve minus five equals?",
    "what's 3 x 4": "what's three times four",
    "7-3": "seven to three",
    "10–20": "ten to twenty",
    "9-5": "nine to five",
    "What is 9-5?": "What is nine minus five?",
    "9-5 equals 4, calculate 20-10": "nine minus five equals four, calculate twenty minus ten",
    "7-3+1": "seven minus three plus one",
    "for i<10, 0<x<1, n>5": "for I is less than ten, zero is less than x is less than one, n is "
    "greater than five",
    "File>Open, List<int>": "File Open, List int",
    "What is 8/2?": "What is eight divided by two?",
    "What is 11/21/2026?": "What is November twenty-first, twenty twenty-six?",
    "x^2 and 2^8": "x squared and two to the power of eight",
    "1.5e-3": "one point five times ten to the power of minus three",
    (
        "5 > 3, 3 ≤ 4, 1 != 2"
    ): "five greater than three, three less than or equal to four, one not equal to two",
    "1920x1080": "nineteen twenty by one thousand eighty",
    "1½ cups, ¾": "one and a half cups, three quarters",
    "24/7": "twenty-four seven",
    "Open 24/7.": "Open twenty-four seven.",
    "9/11, and 20/20 vision": "nine eleven, and twenty twenty vision",
    (
        "¾ tsp salt, ½ kg, 2 1/2 tbsp"
    ): "three quarters of a teaspoon salt, one half kilogram, two and a half tablespoons",
    "It took 1h 30m.": "It took one hour thirty minutes.",
    "2h30m, 5m 20s": "two hours thirty minutes, five minutes twenty seconds",
    "30m wide, 100m in 9.58s": "thirty meters wide, one hundred meters in nine point five eight "
    "seconds",
    "3,50 € or €12,99": "three euros and fifty cents or twelve euros and ninety-nine cents",
    "1.234,50 EUR": "one thousand two hundred thirty-four euros and fifty cents",
    (
        '<speak>Hello <break time="500ms"/> <prosody rate="slow">there</prosody></speak>'
    ): "Hello there",
    "if a<b and c>d": "if a is less than b and c is greater than d",
    # money
    "$5": "five dollars",
    "$1": "one dollar",
    "$5.20": "five dollars and twenty cents",
    "$0.99": "ninety-nine cents",
    "$3 million": "three million dollars",
    "$5-$10 and 50¢": "five dollars to ten dollars and fifty cents",
    "£0.50 or €1 or 20 €": "fifty pence or one euro or twenty euros",
    # times and dates
    "at 3:45 pm": "at three forty-five P M",
    "at 3:00 or 15:30 or 9:05": "at three o'clock or fifteen thirty or nine oh five",
    "at 7 a.m. sharp": "at seven A M sharp",
    "2026-11-21": "November twenty-first, twenty twenty-six",
    "11/21/2026": "November twenty-first, twenty twenty-six",
    "Nov 21st": "November twenty-first",
    "November 3, 1984": "November third, nineteen eighty-four",
    "21.11.2026 at 00:00": "the twenty-first of November twenty twenty-six at midnight",
    (
        "31/12/2026, 99/99/2026"
    ): "December thirty-first, twenty twenty-six, ninety-nine ninety-nine twenty twenty-six",
    (
        "45.45.2026, 10.2.1"
    ): "forty-five point forty-five point twenty twenty-six, ten point two point one",
    "at 3:07:45, 31:75": "at three oh seven and forty-five seconds, thirty-one to seventy-five",
    "4 July 2020": "the fourth of July twenty twenty",
    # telephones
    "555-1234": "five five five, one two three four",
    "(555) 123-4567": "five five five, one two three, four five six seven",
    "0800 123 4567": "zero eight zero zero, one two three, four five six seven",
    # units
    "5'11\" tall": "five foot eleven tall",
    "5 kg at 100 km/h": "five kilograms at one hundred kilometers per hour",
    "21°C and 1 °F": "twenty-one degrees Celsius and one degree Fahrenheit",
    "1 m, 6 ft": "one meter, six feet",
    # abbreviations
    "Mr. and Mrs. Smith met Dr. Jones.": "Mister and Missus Smith met Doctor Jones.",
    "Elm St. near St. John": "Elm Street near Saint John",
    "e.g. this, i.e. that, etc.": "for example this, that is that, et cetera.",
    "No. 5 is alive. No. I said no.": "Number five is alive. No. I said no.",
    "the U.S. and the UK": "the U S and the U K",
    "NASA, the FBI and my PhD": "Nasa, the F B I and my P H D",
    "It's OK.": "It's okay.",
    "HELLO WORLD THIS IS LOUD": "hello world this is loud",
    "HELLO": "Hello",
    "This is VERY good, I CAN'T complain": "This is very good, I can't complain",
    "THANKS": "Thanks",
    "how r u, r u ok, n o r a d": "how are you, are you okay, n o r a d",
    "fig. 3 on p. 12": "figure three on page twelve",
    "e.g.this": "for example this",
    "J. R. R. Tolkien wrote it.": "J R R Tolkien wrote it.",
    "Vitamin C. It helps.": "Vitamin C. It helps.",
    "Henry VIII and World War II, Chapter IV": "Henry the eighth and World War two, Chapter four",
    # signs
    "A & B, C + D, 50 @ 2": "A and B, C plus D, fifty at two",
    "#1 and #winning": "number one and hashtag winning",
    "C# and C++": "C sharp and C plus plus",
    "his/her and/or w/o": "his or her and or without",
    "yes — no – maybe": "yes, no, maybe",
    "(in brackets) and [more]": "in brackets, and, more",
    'He said: "Hello!"': "He said: Hello!",
    "<b>bold</b>": "bold",
    "wait... what?!": "wait, what?",
    "One.\n\nTwo\nthree": "One. Two three",
    # addresses
    "Visit https://www.example.com/a now.": "Visit example dot com slash a now.",
    "Mail bob@mail.example.org!": "Mail bob at mail dot example dot org!",
    "see README.md, /etc/passwd": "see readme dot M D, slash etc slash passwd",
    "C:\\a\\b.txt": "C colon backslash a backslash b dot T X T",
    # what stands for the eye alone
    "# Title\n- one\n- two": "Title. one. two",
    "1. First\n2. Second": "one. First. two. Second",
    "How are you? 😊👍": "How are you?",
    "😊": "smiling face",
    "so 😀😀 😀 nice": "so grinning face nice",
    # other scripts and odd words
    "café naïve": "cafe naive",
    "日本": "ri ben",
    "I am 😀 today": "I am grinning face today",
    "soooooo cool": "soo cool",
    "xkcdq hmm shh": "X K C D Q hmm shh",
    # what is typed, and was once misread
    "Call 911, dial 411.": "Call nine one one, dial four one one.",
    "a Porsche 911": "a Porsche nine hundred eleven",
    (
        "9:30-11:00, 9am-5pm, 7-9 p.m."
    ): "nine thirty to eleven o'clock, nine A M to five P M, seven to nine P M.",
    "Mon-Fri at 8:00": "Monday to Friday at eight o'clock",
    (
        "5 ft. tall, 3 in. wide. We waited 5 min."
    ): "five feet tall, three inches wide. We waited five minutes.",
    "They let 3 in.": "They let three in.",
    "The A/C, I/O and TCP/IP": "The A C, I O and T C P I P",
    "z = x / y": "z equals x divided by y",
    "total = price * 2 - 3": "total equals price times two minus three",
    "ASN.1, X.509, H.264": "A S N one, X five zero nine, H two six four",
    "Write to <mail@example.org>!": "Write to mail at example dot org!",
    "30 mpg, 4 GiB, 3.5GHz, 2 MB/s": (
        "thirty miles per gallon, four gibibytes, three point five gigahertz, two megabytes "
        "per second"
    ),
    "JSON, MIME and POSIX": "Jason, Mime and Posix",
    "Set policy.max_len = 10": "Set policy dot max len equals ten",
    "a $25 invoice, the $5 you owe": "a twenty-five dollar invoice, the five dollars you owe",
    "a 5 kg bag, a 10-km run": "a five kilogram bag, a ten kilometer run",
    (
        "US$20, USD 5, 10 CHF, Rs. 500"
    ): "twenty U S dollars, five U S dollars, ten Swiss francs, five hundred rupees",
    "FBI, CIA, NSA, HTML": "F B I, C I A, N S A, H T M L",
    "CALL THE FBI, THE HOUSE IS ON FIRE": "call the F B I, the house is on fire",
    "This is IMPORTANT, see YAML": "This is important, see Yammel",
    "👍👍👍": "thumbs up",
    "1-800-FLOWERS, +1 (555) 123-4567": (
        "one, eight hundred, Flowers, plus one, five five five, one two three, four five six seven"
    ),
    "Python 3.11, USB 3.0": "Python three point eleven, U S B three point zero",
    "0x1F4A, #ff00aa": "zero X one F four A, hash F F zero zero, A A",
    "10.0.0.1:8080": "one zero dot zero dot zero dot one, port eighty eighty",
    "00:1A:2B:3C:4D:5E": "zero zero, one A, two B, three C, four D, five E",
    "d00fec5a": "D zero zero F, E C five A",
    "a1" * 64: "a code of one hundred twenty-eight characters",
    "COVID-19, F-16, SHA-256": "Covid nineteen, F sixteen, S H A two fifty-six",
    "error 404 on flight 370": "error four oh four on flight three seventy",
    (
        "Boeing 747-400, pages 5-10, 4-1"
    ): "Boeing seven forty-seven four hundred, pages five to ten, four to one",
    "Rocky IV, an IV drip, Super Bowl LVIII": "Rocky four, an I V drip, Super Bowl fifty-eight",
    "5'10 tall, a 10\" disk": "five foot ten tall, a ten inch disk",
    '"about 10"': "about ten",
    'a 5" and a 6" disk; room 251", said he': "a five inch and a six inch disk; room two "
    "fifty-one, said he",
    "The A.x of A.__dict__ (str)": "The A dot x of A dot dict, string",
    "Title\n=====\n\nMain API ======== run(...): it runs": "Title. Main A P I, run. it runs",
    "C#, .NET, a.out, x.shape": "C sharp, dot net, a dot out, x dot shape",
    "Edmonton Sun, August 16": "Edmonton Sun, August sixteenth",
    "On Sun, August 16": "On Sunday, August sixteenth",
    (
        "4/5 stars, 3:2, 16:9, 3x faster"
    ): "four out of five stars, three to two, sixteen to nine, three times faster",
    "51°30'N, UTC+2": "fifty-one degrees thirty minutes north, U T C plus two",
    "10⁶, ~100, <5, >50%": (
        "ten to the power of six, about one hundred, less than five, more than fifty percent"
    ),
    "2026-11-21T10:30:00Z": "November twenty-first, twenty twenty-six at ten thirty U T C",
    "maxLen, MAX_LEN, PostgreSQL, McDonald": "max len, max len, Postgre S Q L, McDonald",
    "git commit -m x --all && ls": "git commit dash m x dash dash all and L S",
    "if a == b || !c": "if a equals b or not c",
    "[the site](https://example.com) `code`": "the site code",
    "```sh\necho\n```": "echo",
    "cp <file> <dest>": "C P file dest",
    "Hi :-) <3": "Hi love",
    "I'd've, couldn't've, rock 'n' roll": "I'd have, couldn't have, rock and roll",
    "i think i'm late": "I think I'm late",
    "A-, B+": "A minus, B plus",
    "AT&T, R&D": "A T and T, R and D",
    "Listing 21-9, HTTP/2, HP-UX": "Listing twenty-one nine, H T T P two, H P U X",
    'after the "/" and the * operator': "after the slash and the star operator",
    "call foo() with -X, not -Wall": "call foo with dash X, not dash Wall",
    "asdfghjkl": "A S D F G H J K L",
    "ab" * 135: "abababab",
    "bcadef" * 45: "a word of two hundred seventy letters",
    # names with numerals, and sentences that end with letters
    "Queen Victoria, Louis Vuitton, King Lear, Paul Volcker, George Lucas, Class List": (
        "Queen Victoria, Louis Vuitton, King Lear, Paul Volcker, George Lucas, Class List"
    ),
    "King Charles III's coronation, World War II's end, Part I've read": (
        "King Charles the third's coronation, World War two's end, Part I've read"
    ),
    "Vol. II, Ch. IV, Pt. III, Sec. II, Art. I, Art. V": (
        "Volume two, Chapter four, Part three, Section two, Article one, Article five"
    ),
    "She studies Art. I paint.": "She studies Art. I paint.",
    "I watch TV. Cats sleep.": "I watch T V. Cats sleep.",
    "At 5 PM. Dinner. Ask the CEO. Sales of a GPU. Training for a PhD. Students": (
        "At five P M. Dinner. Ask the C E O. Sales of a G P U. Training for a P H D. Students"
    ),
    "Fr. Brown met George W. Bush and C. S. Lewis. A J. Smith novel.": (
        "Father Brown met George W Bush and C S Lewis. A J Smith novel."
    ),
    "the meeting on Sat. is late, by Fri. we go, on Sat. Bring food": (
        "the meeting on Saturday is late, by Friday we go, on Saturday. Bring food"
    ),
    "at 11 p.m. Saturday, at 10 a.m. ET, left at 5 p.m. Police said": (
        "at eleven P M Saturday, at ten A M E T, left at five P M. Police said"
    ),
    # dashes, rates, dates and decimals as they are typed
    "Wait—what? “No—” he said. The years 1914—1918, $5—$10": (
        "Wait, what? No, he said. The years nineteen fourteen to nineteen eighteen, five "
        "dollars to ten dollars"
    ),
    "He came—finally ― home. At 5 — 3 years later": (
        "He came, finally, home. At five, three years later"
    ),
    "$10/month, $3.50/lb, 50¢/min, $30k/yr, $2,500/mo. rent, $5/ea": (
        "ten dollars per month, three dollars and fifty cents per pound, fifty cents per "
        "minute, thirty thousand dollars per year, two thousand five hundred dollars per month "
        "rent, five dollars each"
    ),
    "60 miles/hour, 10 GB/month, 5 mg/day, 2x/day, 12/day, 120 beats/min": (
        "sixty miles per hour, ten gigabytes per month, five milligrams per day, two times per "
        "day, twelve per day, one hundred twenty beats per minute"
    ),
    "100 km/h, 3 day/night cycles, 5 user/password pairs": (
        "one hundred kilometers per hour, three day or night cycles, five user or password pairs"
    ),
    "The 4th of July, every 25 December, my 21 May, since 4 July": (
        "The fourth of July, every twenty-fifth of December, my twenty-first of May, since the "
        "fourth of July"
    ),
    "McDonald's, DiCaprio's and DeSantis' plan": "McDonald's, DiCaprio's and DeSantis plan",
    ".5 miles, .05 mg, .5%, $.99, -.5, it is 3.5": (
        "zero point five miles, zero point zero five milligrams, zero point five percent, "
        "ninety-nine cents, minus zero point five, it is three point five"
    ),
    "No.1, no.5, Fig.3, p.5, pp.5-6": (
        "Number one, number five, Figure three, page five, pages five to six"
    ),
    "$10 Million, $3tn, $1.9T, $5mn, a $5 T-shirt": (
        "ten million dollars, three trillion dollars, one point nine trillion dollars, five "
        "million dollars, a five dollars T-shirt"
    ),
    "£10-20m, $1.5-2 million, $50-60M, $5M-$10M, $5-$10": (
        "ten to twenty million pounds, one point five to two million dollars, fifty to sixty "
        "million dollars, five million dollars to ten million dollars, five dollars to ten "
        "dollars"
    ),
    "5%-10%, 20°–25°C, 68°F–72°F, 5.5% - 6%": (
        "five percent to ten percent, twenty degrees to twenty-five degrees Celsius, "
        "sixty-eight degrees Fahrenheit to seventy-two degrees Fahrenheit, five point five "
        "percent to six percent"
    ),
    "by 12/20, Tue 3/14, Due 1/15, until 2/3, on 1/2 of them, by 3/4": (
        "by December twentieth, Tuesday March fourteenth, Due January fifteenth, until February "
        "third, on one half of them, by three quarters"
    ),
    "born 12/25/98, 1/1/01, on 12-05-2020": (
        "born December twenty-fifth, nineteen ninety-eight, January first, two thousand one, on "
        "December fifth, twenty twenty"
    ),
    "7.30pm, at 7.30 a.m. daily": "seven thirty P M, at seven thirty A M daily",
    "in Jan 2024, Sept 2020, Jan '24, Mar 5": (
        "in January twenty twenty-four, September twenty twenty, January twenty-four, March fifth"
    ),
    "on Mon., Wed., Thu. or in Apr., Jun., Jul. and Sep. we met": (
        "on Monday, Wednesday, Thursday or in April, June, July and September we met"
    ),
    "1:25,000, a lap of 1:32.608, 1:27:05.9": (
        "one to twenty-five thousand, a lap of one thirty-two point six zero eight, one "
        "twenty-seven oh five point nine"
    ),
    # recipes, scores and places
    "12 fl oz, 2 Tbsp, 3 qts, 10 yrs, 3 wks, 6 mos. old, 42 pts, 100 km/hr, 5 µL": (
        "twelve fluid ounces, two tablespoons, three quarts, ten years, three weeks, six months "
        "old, forty-two points, one hundred kilometers per hour, five microliters"
    ),
    "14-oz. can, a 9-in. plate, 5 in. wide": (
        "fourteen ounce can, a nine inch plate, five inches wide"
    ),
    '3/4" pipe, 1 1/2" nail, 2-1/2 cups, 3-1/4" bolt': (
        "three quarters inch pipe, one and a half inch nail, two and a half cups, three and a "
        "quarter inch bolt"
    ),
    '"it is 3/4", he said': "it is three quarters, he said",
    '10" x 8", 30cm x 20cm, 24 in x 36 in, 5ft x 7ft': (
        "ten inch by eight inch, thirty centimeters by twenty centimeters, twenty-four inches "
        "by thirty-six inches, five feet by seven feet"
    ),
    "Heat to 425 degrees F. Bake at 1 degree C.": (
        "Heat to four hundred twenty-five degrees Fahrenheit. Bake at one degree Celsius."
    ),
    "112-98, 217-213, 747-400, pages 123-45": (
        "one hundred twelve to ninety-eight, two hundred seventeen to two hundred thirteen, "
        "seven hundred forty-seven four hundred, pages one hundred twenty-three forty-five"
    ),
    "10/10, 4.5/5, 9.5/10, 5/5, 10/5": (
        "ten out of ten, four point five out of five, nine point five out of ten, five out of "
        "five, ten fifths"
    ),
    "The Dr. said: go to 5 Sunset Dr. now, near 4th Dr.": (
        "The Doctor said: go to five Sunset Drive now, near fourth Drive."
    ),
    "123 Elm St, Dallas; Oak Ave, Apt 3; Park Blvd, Ste 200; Hwy 61; 5 Maple Ln": (
        "one hundred twenty-three Elm Street, Dallas; Oak Avenue, Apartment three; Park "
        "Boulevard, Suite two hundred; Highway sixty-one; five Maple Lane"
    ),
    "on Main St. Then go to 5th St. SE, St. Louis, St Paul": (
        "on Main Street. Then go to fifth Street S E, Saint Louis, Saint Paul"
    ),
    "Mt Everest, Ft Lauderdale, Mount St. Helens, 5 Ft Tall": (
        "Mount Everest, Fort Lauderdale, Mount Saint Helens, five F T Tall"
    ),
    "I work in IT.": "I work in I T.",
    "The IT department, IT Support, put IT there": (
        "The I T department, I T Support, put it there"
    ),
    "5 μg, 5 µm, 10 μL, μ = 5, µTorrent": (
        "five micrograms, five micrometers, ten microliters, mu equals five, micro Torrent"
    ),
    "β-blocker, σ = 2, λ, Δt, 2π": "beta blocker, sigma equals two, lambda, delta t, two pi",
    "The Greek for my word is ο λόγος μου.": "The Greek for my word is o logos moy.",
    "The 49ers and 76ers, the 90s": "The forty-niners and seventy-sixers, the nineties",
    # names and letters
    "WWI, WWII's end, YMCA": "World War one, World War two's end, Y M C A",
    "TL;DR: it works": "T L D R: it works",
    "Maj. Tom, Cpl. Jones, Adm. Nelson, Sens. Warren and Sanders, Reps. Smith and Jones": (
        "Major Tom, Corporal Jones, Admiral Nelson, Senators Warren and Sanders, "
        "Representatives Smith and Jones"
    ),
    "after 10s, wait 30s, every 90s kid": (
        "after ten seconds, wait thirty seconds, every nineties kid"
    ),
    "Psalm 23:1-4, John 3:16, call John 3:30 pm": (
        "Psalm twenty-three one to four, John three sixteen, call John three thirty P M"
    ),
    "x² - 5x + 6 = 0, 30 m² - 2 rooms": (
        "x squared minus five x plus six equals zero, thirty square meters, two rooms"
    ),
    "an RTX 4090": "an R T X forty ninety",
    # tables, lists and lines
    "| Plan | Price |\n|---|---:|\n| Plan A | $5/mo |\n|  | Free! |": (
        "Plan, Price. Plan A, five dollars per month. Free!"
    ),
    "| Team |\n|:--|\n| Plan B |\n| C |": "Team. Plan B; C",
    "- [x] done\n- [ ] todo\n+ more\n▪ last": "done. todo. more. last",
    "A lake.[1][2] It is deep[3] and cold.[note 1] Old.[citation needed]": (
        "A lake. It is deep and cold. Old."
    ),
    "Footnote[^1] here.\n\n[^1]: https://a.org": "Footnote here.",
    "see items[1] and [2]": "see items one, and, two",
    "John Smith\n123 Main St\nSpringfield": (
        "John Smith, one hundred twenty-three Main Street, Springfield"
    ),
    "1 cup sugar\n2 eggs\nmilk": "one cup sugar, two eggs milk",
    "He met the\nQueen of hyphen-\nated words": "He met the Queen of hyphenated words",
    "[a](https://b.org/c_(d)) and ==that== 5<sup>th</sup> x<sup>2</sup>": (
        "a and that fifth x squared"
    ),
    "[the text][1] of `fix/big-bug`, r/books": "the text of fix slash big-bug, r slash books",
    # formulas
    "$x = \\frac{-b \\pm \\sqrt{b^2-4ac}}{2a}$": (
        "x equals minus b plus or minus square root of b squared minus four a c over two a"
    ),
    "Then \\(E = mc^2\\) and \\[a_1 \\leq \\text{all}\\].": (
        "Then E equals m c squared and a sub one less than or equal to all."
    ),
    "$$\\sum_{i=1}^{n} i^3$$, $90^\\circ$, $\\alpha \\cdot n$": (
        "sum from I equals one to n of I cubed, ninety degrees, alpha times n"
    ),
    "$5 and $6, \\$7, $HOME/$USER": (
        "five dollars and six dollars, seven dollars, dollar home dollar user"
    ),
    # news, letters and schedules
    "Biden's $1.9 trillion plan, a $5-6 million budget, a 5-yr, $200M deal": (
        "Biden's one point nine trillion dollar plan, a five to six million dollar budget, a five "
        "year, two hundred million dollar deal"
    ),
    "$90/barrel, $0.002/1K tokens, $5/$6, 418/km2": (
        "ninety dollars per barrel, zero point zero zero two dollars per one thousand tokens, "
        "five dollars or six dollars, four hundred eighteen per square kilometer"
    ),
    "up 25 bps, 0.3pc and 1.8M cars, 12% YoY, 4T tokens": (
        "up twenty-five basis points, zero point three percent and one point eight million cars, "
        "twelve percent year over year, four trillion tokens"
    ),
    "Jane A. Smith, Vitamin A. Carrots, Fr. Jones, Messrs. Lee, Mr & Mrs Ray": (
        "Jane A Smith, Vitamin A. Carrots, Father Jones, Messers Lee, Mister and Missus Ray"
    ),
    "P.S. Don't go. They came w.r.t. order no. 5, the no. 1 seed. I said no. 5 left.": (
        "P S, Don't go. They came with respect to order number five, the number one seed. I said "
        "no. five left."
    ),
    "Invoice #INV-20, Rm 204, Bldg. 7, ext. 42, Op. 9, chr. 17, ver. 2, Ps. 23, 5th Fl.": (
        "Invoice number I N V twenty, Room two hundred four, Building seven, extension forty-two, "
        "Opus nine, chromosome seventeen, version two, Psalm twenty-three, fifth Floor"
    ),
    "Your code is 482913, PIN 4821, ID: 123 456 789, order #: 112-3456, a code of 50000": (
        "Your code is four eight two, nine one three, Pin four eight two one, I D: one two "
        "three, four five six, seven eight nine, order number: one one two, three four five six, "
        "a code of fifty thousand"
    ),
    "1Z999AA10123 is in Salem, OR 97201-1234 or New York, NY 10001": (
        "one Z nine nine, nine A A one, zero one two three is in Salem, O R nine seven two zero "
        "one, one two three four or New York, N Y one zero zero zero one"
    ),
    "555 W Main St, on W. 4th St., at E. Lee Ave, Robert E. Lee Blvd": (
        "five hundred fifty-five West Main Street, on West fourth Street, at East Lee Avenue, "
        "Robert E Lee Boulevard"
    ),
    "Mon., Wed., Fri. at 5; Sat: closed; Sat & Sun; on Wed; M-F; The Sun: hot": (
        "Monday, Wednesday, Friday at five; Saturday: closed; Saturday and Sunday; on Wednesday; "
        "Monday to Friday; The Sun: hot"
    ),
    "Apr-Oct, Jan.-Mar. 2020, Nov 30-Dec 2, 30 Nov - 2 Dec, week of 9/4": (
        "April to October, January to March twenty twenty, November thirtieth to December second, "
        "the thirtieth of November to the second of December, week of September fourth"
    ),
    "(14 March 1879 – 18 April 1955), May 1, 1900 - May 2, 1950, 100 BC – 44 BC": (
        "the fourteenth of March eighteen seventy-nine to the eighteenth of April nineteen "
        "fifty-five, May first, nineteen hundred to May second, nineteen fifty, one hundred B C "
        "to forty-four B C"
    ),
    "10 AM - 12:00 PM: lunch, 16h30, 19:00h, 6am-midnight, noon-5pm, class of '03": (
        "ten A M to twelve P M: lunch, sixteen thirty, nineteen hundred, six A M to midnight, "
        "noon to five P M, class of oh three"
    ),
    "at 2024-03-15T23:59:59-05:00": (
        "at March fifteenth, twenty twenty-four at twenty-three fifty-nine and fifty-nine seconds "
        "U T C minus five"
    ),
    "b. 1920, d. 2005; WW2, 24/7/365, a 401(k), ISSN 1234-5678, 1 000 000, 5 000": (
        "born nineteen twenty, died two thousand five; World War two, twenty-four seven three "
        "hundred sixty-five, a four oh one K, I S S N one two three four, five six seven eight, "
        "one million, five thousand"
    ),
    "rate it 8/10, scored 85/100, 40/100, 9.95/10, gave 3/5 of it": (
        "rate it eight out of ten, scored eighty-five out of one hundred, forty out of one "
        "hundred, nine point nine five out of ten, gave three fifths of it"
    ),
    "9-to-5, 3-in-1, 4th-and-1, a 10-3-1 record, Q1-Q3, i7-13700K": (
        "nine to five, three in one, fourth and one, a ten, three, one record, Q one to Q three, "
        "I seven thirteen thousand seven hundred K"
    ),
    # recipes, goods and science
    "1/2 tsp. salt, 1½ lbs. beef, ½ c. oil, 2 c. flour, ¼–½ cup, 250 g / 9 oz": (
        "one half teaspoon salt, one and a half pounds beef, one half cup oil, two cups flour, "
        "one quarter to one half cup, two hundred fifty grams, nine ounces"
    ),
    "Bake at 350 F, 180C/350F/gas 4, at 400ºF; 4 x 150g, 6 ft. 2 in.": (
        "Bake at three hundred fifty degrees Fahrenheit, one hundred eighty degrees Celsius, "
        "three hundred fifty degrees Fahrenheit, gas four, at four hundred degrees Fahrenheit; "
        "four times one hundred fifty grams, six feet two inches."
    ),
    "8.5 x 11, N x M, 8xA100, 10,000 x g, +/-5%, 5 / 6 / 7": (
        "eight point five by eleven, N by M, eight times A one hundred, ten thousand times g, "
        "plus or minus five percent, five, six, seven"
    ),
    "50/60Hz, 120/80 mmHg, 1/60 s, 2700K, 800 lm, 12MP, 345 yds, 200 hp": (
        "fifty or sixty hertz, one hundred twenty over eighty millimeters of mercury, one over "
        "sixty of a second, two thousand seven hundred kelvin, eight hundred lumens, twelve "
        "megapixels, three hundred forty-five yards, two hundred horsepower"
    ),
    "55 kDa, 10 mM NaCl, 420 ppm, 5 kJ/mol, 182 sq km, 1.6×10⁻¹⁹, ω-3": (
        "fifty-five kilodaltons, ten millimolar N A C L, four hundred twenty parts per million, "
        "five kilojoules per mole, one hundred eighty-two square kilometers, one point six times "
        "ten to the power of minus nineteen, omega three"
    ),
    "48°51′24″N, Windows 10/11, Type O- blood, A-Z, ¶ 3, note† and P!nk feat. X": (
        "forty-eight degrees fifty-one minutes north, Windows ten or eleven, Type O negative "
        "blood, A to Z, paragraph three, note and Pink featuring X"
    ),
    # chats and programs
    "im l8r 2nite, np, thx 4 ur help, u 2! Pls. go. tbh idc w/e, give me 2 days": (
        "I'm later tonight, no problem, thanks for your help, you too! Please go. to be honest I "
        "don't care whatever, give me two days"
    ),
    "see docs/api.md#top, `-h`/`--help`, #include, `ls` # list, timeout=30s, v2.0-beta.3": (
        "see docs slash A P I dot M D hash top, dash h or dash dash help, hash include, L S, "
        "list, timeout equals thirty seconds, v two point zero beta three"
    ),
    "Node 18.x, 555-123-4567 x12, plate #": (
        "Node eighteen point X, five five five, one two three, four five six seven extension "
        "twelve, plate hashtag"
    ),
    # answers of chatbots, series and contracts
    "It is **42**, ***so***, 2**3 and a**2 + b**2": (
        "It is forty-two, so, two cubed and a squared plus b squared"
    ),
    "3y - 6 = 0, 2x + 1 = 7, 3x faster": (
        "three y minus six equals zero, two x plus one equals seven, three times faster"
    ),
    '"1999", a 5" disk, "22"': "nineteen ninety-nine, a five inch disk, twenty-two",
    "S01E05, Ep. 12, f/1.8, 45 y/o, s/he, item(s), at 98.6 F": (
        "Season one, Episode five, Episode twelve, f one point eight, forty-five year old, she or "
        "he, items, at ninety-eight point six degrees Fahrenheit"
    ),
    "World Wars I and II, Parts I-III, XIV century": (
        "World Wars one and two, Parts one to three, fourteenth century"
    ),
    "30 (thirty) days, ten (10) days, six (7)": "thirty days, ten days, six, seven",
    "Oct. 3-5, 2024, 5–7 Sept., the 5-7 May, Jan 5-7pm, 9/3-9/7, Ends 11/30.": (
        "October third to fifth, twenty twenty-four, the fifth to the seventh of September, the "
        "fifth to the seventh of May, January fifth to seven P M, September third to September "
        "seventh, Ends November thirtieth."
    ),
    "(2016–19), 2024-25, 2024/25, 2/$5, $5 USD, CA$50, GBP/USD 1.27": (
        "twenty sixteen to twenty nineteen, twenty twenty-four twenty-five, twenty twenty-four "
        "twenty-five, two for five dollars, five U S dollars, fifty Canadian dollars, G B P U S D "
        "one point two seven"
    ),
    "1.500 €, 1'000 CHF, Rs 500, ₹1,00,000, 50,5 kg, 10,500 kg": (
        "one thousand five hundred euros, one thousand Swiss francs, five hundred rupees, one "
        "hundred thousand rupees, fifty point five kilograms, ten thousand five hundred kilograms"
    ),
    "45 E. 7th St.\nRSVP by Wed!\nSat.: rain; next Fri; Classic pizza, quick, easy\nServes 4": (
        "forty-five East seventh Street. R S V P by Wednesday! Saturday: rain; next Friday; "
        "Classic pizza, quick, easy, Serves four"
    ),
    "on Mon Mothma's ship, to 100 F Street, Give me 2. it's no 5-star hotel, order 12345 pots": (
        "on Mon Mothma's ship, to one hundred F Street, Give me two. it's no five-star hotel, "
        "order twelve thousand three hundred forty-five pots"
    ),
    "This line is the longest, of fifty and more characters,\nand the short one, which leads to "
    "the other\nQueensferry-Crossing bridge. [^1]: Words.": (
        "This line is the longest, of fifty and more characters, and the short one, which leads to "
        "the other Queensferry-Crossing bridge. Words."
    ),
    # nothing to say
    "": "",
    "!?...": "",
    " - ' , ": "",
    "\u200b\u202e": "",
}


@pytest.mark.parametrize(("written", "said"), TABLE.items(), ids=lambda text: text[:30])
def test_table(written: str, said: str) -> None:
    assert spoken_text(written) == said


@pytest.mark.parametrize("text", [*TABLE, *TABLE.values()], ids=lambda text: text[:30])
def test_table_is_a_fixed_point(text: str) -> None:
    assert spoken_text(spoken_text(text)) == spoken_text(text)


ALLOWED = re.compile(r"(?:[A-Za-z]+(?:['-][A-Za-z]+)*[.,?!;:]?(?: (?=[A-Za-z])|$))*")
PIECES = st.sampled_from(
    [
        *TABLE,
        *"Dr. St. a.m. U.S. ' - . ... I A II NASAs x 12 1/2 $ € % ° @ 😀 本 é ½ ⅷ".split(),
        *"ﬁ İ ß ǅ Q. aaaa JJJJ Mr No. etc. :) ’s ١٢".split(),
        "\n\n",
        "http://a.b",
        "\u0301",
        "\u202e",
    ]
)


@given(st.one_of(st.text(), st.lists(PIECES).map(" ".join), st.lists(PIECES).map("".join)))
@example("I.I.")
@example("a.b.c.")
@example("SunAug")
@example('İMon-Fri at 8:00"about 10"')
@settings(deadline=None, max_examples=300)
def test_any_text_becomes_plain_words_once(text: str) -> None:
    said = spoken_text(text)
    assert ALLOWED.fullmatch(said), said
    assert all(len(word) <= MAX_WORD_LETTERS for word in re.findall("[A-Za-z]+", said))
    assert spoken_text(said) == said


@given(st.text(alphabet="0123456789.,:/-$% apmkgst", max_size=24))
@settings(deadline=None, max_examples=300)
def test_no_figure_is_left(text: str) -> None:
    assert not re.search(r"\d", numbers_to_words(text))


def test_number_words() -> None:
    assert cardinal(12_305) == "twelve thousand three hundred five"
    assert cardinal(10**12) == " ".join(["one", *["zero"] * 12])
    assert ordinal(121) == "one hundred twenty-first"
    assert [year(y) for y in (1066, 1900, 1905, 2000, 2010)] == [
        "one thousand sixty-six",
        "nineteen hundred",
        "nineteen oh five",
        "two thousand",
        "twenty ten",
    ]
    assert digits("2-04") == "two zero four"


SENTENCES = {
    "Mr. Smith went home. He slept! Did he?": ["Mr. Smith went home.", "He slept!", "Did he?"],
    "It is 3.14 in the U.S. army. The end.": ["It is 3.14 in the U.S. army.", "The end."],
    'She said "Stop." Then he left.': ['She said "Stop."', "Then he left."],
    "No. It is not.": ["No. It is not."],
    "Wait... what? Yes, indeed.": ["Wait... what?", "Yes, indeed."],
    "I watch T V. Cats sleep at ten A M. Dogs do not.": [
        "I watch T V.",
        "Cats sleep at ten A M.",
        "Dogs do not.",
    ],
    "J. R. R. Tolkien met Ann B. Davis. A J. Smith novel.": [
        "J. R. R. Tolkien met Ann B. Davis.",
        "A J. Smith novel.",
    ],
    "no end": ["no end"],
    "  ": [],
}


@pytest.mark.parametrize(("text", "sentences"), SENTENCES.items(), ids=lambda x: str(x)[:30])
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text, 200) == sentences


def test_long_sentences_are_cut_where_a_reader_pauses() -> None:
    text = (
        "We came home late in the evening, tired and hungry; nobody had cooked, so we went out "
        "again to eat."
    )
    assert split_sentences(text, 60) == [
        "We came home late in the evening, tired and hungry;",
        "nobody had cooked, so we went out again to eat.",
    ]
    assert split_sentences("one two three four five six", 12) == [
        "one two",
        "three four",
        "five six",
    ]
    assert split_sentences("abcdefghij" * 3, 8) == ["abcdefgh", "ijabcdef", "ghijabcd", "efghij"]


@given(st.one_of(st.text(), st.lists(PIECES).map(" ".join)), st.integers(1, 60))
@settings(deadline=None, max_examples=200)
def test_cutting_loses_nothing(text: str, max_chars: int) -> None:
    pieces = split_sentences(text, max_chars)
    assert all(0 < len(piece) <= max_chars and piece == piece.strip() for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("what's your name", "What's your name?"),
        ("how do you do", "How do you do?"),
        ("and where are they", "And where are they?"),
        ("do you know", "Do you know?"),
        ("is it late", "Is it late?"),
        ("do it now", "Do it now."),
        ("what a day", "What a day."),
        ("how to read", "How to read."),
        ("hello", "Hello."),
        ("Stop!", "Stop!"),
        ("when it rains,", "When it rains,"),
        ("", ""),
    ],
)
def test_a_text_is_read_as_a_sentence(typed: str, sentence: str) -> None:
    assert as_sentence(typed) == sentence == as_sentence(sentence)
