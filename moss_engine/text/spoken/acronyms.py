"""Words in capitals: those that are said otherwise than written, those that are spelt, and those
that are only emphasised."""

from __future__ import annotations

# fmt: off
RESPELT = {
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
SAID_AS_WORDS = frozenset(
    "NASA NATO AIDS UNESCO UNICEF OPEC FIFA NAFTA RAM ROM LASER RADAR SCUBA PIN SIM GIF LAN "
    "WAN FEMA OSHA SWAT ZIP IKEA LEGO BASIC COBOL ASCII COVID MIME POSIX FORTRAN SONAR CAPTCHA "
    "UNIX LINUX CAD NAS MAC DOS TAR JIT RAID BIOS CUDA NUMA SATA ANSI LIDAR SARS MERS ZOOM VISA "
    "AMEX ASEAN RISC CISC PEP INTERPOL DEBIAN UBUNTU JAVA PERL BASH CRON GREP".split()
)
SPELT = frozenset(
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
SPELT_IN_SMALL_LETTERS = frozenset(
    "api apis url urls usb cpu cpus gpu gpus faq ai ui ux uk usa eu ufo ip atm iq ceo suv omg imo "
    "diy ssd pdfs html xhtml https dvds cds tvs utf".split()
)
SHOUTED = frozenset(
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
