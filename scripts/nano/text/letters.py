"""Letters said one by one: acronyms, spelled names, codes, plates, keys; and files, units and signs of technical talk."""

from __future__ import annotations

import random
import string
from collections.abc import Callable

_ACRONYMS = """
FBI CIA USA UK EU UN BBC CNN NBC IBM CPU GPU USB PDF URL HTTP HTTPS HTML CSS XML SQL API SDK IDE GDB GCC SSH FTP TCP UDP IP DNS DHCP
LAN WAN VPN RGB LED LCD TV DVD CD MP PC OS UI UX AI ML IT HR PR VIP CEO CFO CTO PHD MBA BA MA MD DJ MC ATM PIN ID GPS SUV AC DC AM FM PM
DIY FAQ ETA ASAP RSVP KGB NBA NFL NHL MLB UCLA MIT NYU LA DC NY EKG MRI CT DNA RNA HIV IQ EQ GDP VAT IRS SOS UFO XYZ ABC QR JPG PNG GIF
BMW VW GM AK KLM TWA JFK LBJ FDR RPM MPH DB KB MB HDMI VGA BIOS CMS CRM ERP NGO WHO IMF WTO OECD AAA AA BBQ TLS SSL JSON YAML CSV PHP RFC
""".split()
_FRAMES = (
    "The {0} met in {city}.", "He works for the {0}.", "What does {0} stand for?", "The {0} and the {1} signed it.",
    "My name is spelled {letters}.", "It is spelled {letters}.", "{first} is spelled {spelled}.",
    "{last} is written {spelled_last}.", "Type {0} and press enter.", "The code is {mixed}.", "The plate reads {mixed}.",
    "Flight {flight} to {city} is late.", "Seat {seat} is free.", "Please send the {0} to {name}.", "Press {key}.",
    "Option {letter} is right, option {letter} is wrong.", "Choose {letter}, {letter}, or {letter}.",
    "The {0} file is {small} megabytes.", "Vitamin {letter} is good for you.", "Plan {letter} has failed.",
    "She got an {grade} in math.", "The letters are {letters}.", "From {letter} to {letter}.", "Room {letter} {small}.",
    "{letters}.", "{mixed}.", "Is it {letter} or {letter}?", "Say {letters} again.", "{0}, {1}, and {2}.",
    "The {0} port is next to the {1} port.", "An {0} is not a {1}.", "Open the {0} first, then the {1}.",
    "His initials are {letters3}.", "{letter}. {letter}. {last} wrote it.", "Highway {letter} {small} is closed.",
    "The {0}'s budget is {price}.", "Our {0} server is down.", "We use {0} over {1}.", "Convert the {0} to {1}, please.",
    "A K {count}", "The A K {count} is a rifle.", "Type A and type B.", "Grade A beef.", "A, B, C, D, E, F, G.",
)  # fmt: skip
_TECHNICAL = (
    "The file is {decimal} GB.", "It loads in {count} ms.", "The disk has {small} TB.", "It uses {count} MB of memory.",
    "The signal is {decimal} GHz.", "It runs at {count} MHz.", "A {small} V battery.", "It needs {count} W.",
    "It weighs {decimal} kg.", "It is {count} cm tall.", "The rope is {decimal} m long.", "{count} km from {city}.",
    "We drove at {count} km/h.", "The limit is {count} mph.", "{small} miles per gallon.", "Add {count} ml of water.",
    "It holds {decimal} liters.", "{temp}°C in {city}.", "It was {temp}°F at {clock}.", "The noise reached {count} dB.",
    "{count} square meters.", "{count} cubic feet of {food}.", "{small} ft tall and {small} in wide.", "{small} lb of {food}.",
    "{percent}% of the {plural} are gone.", "The ratio is {small} to {small}.", "{small} times {small} is {sum}.",
    "{small} squared is {sum}.", "The angle is {count} degrees.", "It took {small} h and {small} min.", "{count} pixels wide.",
    "The {artifact} draws {decimal} amps.", "{big} bytes per second.", "It spins at {big} revolutions per minute.",
    "Version {small}.{small} is out.", "Version {small} of the {artifact} fixes {count} bugs.", "Port {count} is open.",
    "Line {count} has an error.", "See chapter {small}, section {small}.", "Error {count}: the {artifact} is missing.",
    "The pressure is {count} bar.", "A dose of {count} mg.", "{small} kilowatt hours a day.", "{big} square kilometers.",
)  # fmt: skip


class Letters:
    """Endless random sentences with letters or units."""

    def __init__(self, expand: Callable[[str], str], rng: random.Random, names: list[str]):
        self.expand, self.rng, self.names = expand, rng, names

    def _letters(self, low: int, high: int) -> str:
        return " ".join(self.rng.choices(string.ascii_uppercase, k=self.rng.randint(low, high)))

    def _mixed(self) -> str:
        items = self.rng.choices(string.ascii_uppercase, k=self.rng.randint(1, 4))
        items += [str(self.rng.randint(0, 9)) for _ in range(self.rng.randint(1, 4))]
        if self.rng.random() < 0.4:
            self.rng.shuffle(items)
        return " ".join(items)

    def sentence(self) -> str:
        rng = self.rng
        if rng.random() < 0.45:
            return self.expand(rng.choice(_TECHNICAL))
        frame = rng.choice(_FRAMES)
        name, last = rng.choice(self.names), rng.choice(self.names)
        for slot, value in (
            ("{first} is spelled {spelled}", f"{name} is spelled {' '.join(name.upper())}"),
            ("{last} is written {spelled_last}", f"{last} is written {', '.join(last.upper())}"),
            ("{letters3}", self._letters(2, 3)),
            ("{letters}", self._letters(2, 7)),
            ("{mixed}", self._mixed()),
            ("{flight}", f"{self._letters(2, 2)} {rng.randint(10, 999)}"),
            ("{grade}", rng.choice("AF")),
            ("{seat}", f"{rng.randint(1, 40)} {rng.choice('ABCDEFG')}"),
            ("{key}", f"F{rng.randint(1, 12)}"),
        ):
            frame = frame.replace(slot, value)
        for number in range(3):
            frame = frame.replace(f"{{{number}}}", self._acronym())
        while "{letter}" in frame:
            frame = frame.replace("{letter}", rng.choice(string.ascii_uppercase), 1)
        return self.expand(frame)

    def _acronym(self) -> str:
        if self.rng.random() < 0.35:
            return "".join(self.rng.choices(string.ascii_uppercase, k=self.rng.randint(2, 4)))
        return self.rng.choice(_ACRONYMS)
