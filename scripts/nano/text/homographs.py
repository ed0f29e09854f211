"""Words with two pronunciations in sentences that tell which: training text with the right phonemes forced.

A line is word | phonemes | frames; a frame holds the word as `~`, and slots of `phrases`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_LINES = """
read|ɹˈid|I will ~ the {artifact} {when}.; {name} likes to ~ in bed.; Can you ~ this to me?; Please ~ the {adj} letter aloud.; Did {name} ~ the book?; They want to ~ about {abstract}.; Children learn to ~ at school.; To ~ a map is easy.; Let's ~ it again.; I can't ~ your writing.
read|ɹˈɛd|{name} has ~ the {adj} letter.; I had ~ every page by noon.; The will was ~ aloud by the {person}.; Yesterday {pron} ~ two books.; Have you ~ it?; She ~ it last night and slept.; He ~ the note and left the room.; The book was ~ by millions.; I ~ about it in the paper last week.; We've ~ the rules.
lead|lˈid|This road may ~ to the {place}.; {name} wants to ~ the group.; They ~ by three points.; She took the ~ in the second half.; Who will ~ us?; Hard work can ~ to {abstract}.; He played the ~ role.; Please ~ the {animal} to the {place}.; Keep the dog on a ~.; All roads ~ to Rome.
lead|lˈɛd|The old paint has ~ in it.; A ~ pipe is heavy.; The box was as heavy as ~.; Water from ~ pipes is bad for you.; The bullet was made from ~.; A pencil has no ~ in it.; ~ is a soft metal.; The roof is covered with ~.; Tin and ~ melt easily.; ~ and zinc are metals.
wind|wˈɪnd|The ~ blew all night.; A cold ~ came from the north.; The ~ and the rain stopped {when}.; There is no ~ today.; The ~ knocked over the {artifact}.; We sailed against the ~.; A gust of ~ took {poss} hat.; The trees bent in the ~.; ~ power is cheap.; The ~ is strong {when}.
wind|wˈInd|Please ~ the watch.; You have to ~ it up every day.; The path began to ~ through the {place}.; ~ the wool into a ball.; I forgot to ~ the alarm clock.; Rivers ~ through the valley.; Let's ~ up the meeting.; ~ the rope around the {artifact}.; The roads ~ up the hill.; She likes to ~ down after work.
tear|tˈɪɹ|A ~ ran down her cheek.; He wiped away a ~.; There was a ~ in his eye.; Not a single ~ fell.; One ~ dropped on the letter.; The film brought a ~ to my eye.; Each ~ was dried.; She blinked back a ~.; A ~ of joy.; The child shed a ~.
tear|tˈɛɹ|Don't ~ the page.; He began to ~ the letter to pieces.; There is a ~ in my coat.; They will ~ down the old {place}.; You might ~ your {artifact}.; ~ along the line.; I saw her ~ open the box.; Wear and ~ ruined the {artifact}.; Please ~ off the label.; The strong current can ~ the net.
live|lˈɪv|I ~ in {city}.; Where do you ~?; We ~ near the {place}.; Fish ~ in water.; {name} used to ~ with {poss} {relative}.; They want to ~ in peace.; People ~ longer now.; You ~ and learn.; How long did {name} ~ there?; Some trees ~ for centuries.
live|lˈIv|The concert was ~.; We heard ~ music {when}.; It is a ~ broadcast from {city}.; The game will be shown ~ on television.; A ~ wire is dangerous.; They sold ~ chickens.; The show goes out ~ {when}.; She sang in front of a ~ audience.; ~ fish were kept in the tank.; Our reporter is ~ in {city}.
lives|lˈIvz|The storm cost many ~.; They saved three ~.; Cats have nine ~.; Our ~ have changed.; All their ~ they waited.; The {person} told us about the ~ of {plural}.; People risk their ~ every day.; It was the best day of our ~.
lives|lˈɪvz|{name} ~ in {city}.; She ~ alone.; My {relative} ~ near the {place}.; Who ~ here?; He ~ on bread and water.; The {animal} ~ in the forest.; Nobody ~ there now.; It ~ under the {surface}.
close|klˈOz|Please ~ the window.; They ~ at {clock}.; Did {name} ~ the {artifact}?; ~ your eyes.; The shops ~ early {when}.; He forgot to ~ the gate.; ~ the file when you are done.; We had to ~ the {place}.; The bank will ~ the account.; It's time to ~ the meeting.
close|klˈOs|The {place} is very ~.; {name} is a ~ friend.; We sat ~ together.; It was a ~ game.; Stay ~ to me.; They live ~ by.; That was too ~.; The {place} is ~ to the {water}.; Take a ~ look at the {artifact}.; Come a little ~ and see.
bow|bˈO|She shot an arrow with a ~.; Tie the ribbon in a ~.; The violin ~ is broken.; A red ~ was in her hair.; He carried a ~ and arrows.; The hunter drew his ~.; Her dress had a big ~.; The archer bent the ~.
bow|bˈW|They ~ to the queen.; The actors took a ~.; He made a deep ~ to the king.; The ~ of the boat is painted {colour}.; Waves broke over the ~.; We stood at the ~ of the ferry.; You should ~ when you meet him.; ~ your head.; She had to ~ before the {person}.
dove|dˈʌv|The white ~ flew away.; A ~ is a sign of peace.; We heard a ~ in the tree.; The ~ built its nest.; He let the ~ go.; A gray ~ sat there.; The hawk and the ~.; One ~ cooed on the roof.
dove|dˈOv|He ~ into the {water}.; She ~ off the boat.; The plane ~ toward the ground.; The {animal} ~ under the waves.; They ~ for cover.; {name} ~ in head first.; We ~ to the bottom of the pool.; Then {name} ~ for the ball.
wound|wˈund|The ~ healed slowly.; His ~ hurts.; She had a deep ~ in her arm.; Clean the ~ with water.; It is only a flesh ~.; Salt in the ~ stings.; The doctor looked at the ~.; A bullet ~ is serious.
wound|wˈWnd|She ~ the scarf around her neck.; He ~ up the toy.; The road ~ through the hills.; {name} ~ the clock {when}.; They ~ the thread on a spool.; The river ~ along the valley.; I ~ the cable around my arm.; She ~ down the window.
refuse|ɹəfjˈuz|I ~ to {act}.; They ~ any help.; You can't ~ such an offer.; Why did {name} ~?; We ~ to believe it.; She will ~ the money.; Nobody would ~ a {adj} {artifact}.; They may ~ to pay.
refuse|ɹˈɛfjˌus|The ~ was taken away.; A heap of ~ lay by the road.; Put the ~ in the bin.; The city burns its ~.; ~ bins stand {where}.; Rats live in the ~.; Household ~ is recycled.; The trucks collect ~.
desert|dˈɛzəɹt|They crossed the ~ on camels.; Nothing grows in the ~.; The Sahara is a ~.; A ~ island lay ahead.; The ~ gets cold at night.; We drove through the ~ {when}.; It rarely rains in the ~.; The ~ sand is {quality}.
desert|dəzˈɜɹt|Soldiers must not ~.; Don't ~ me now.; He will ~ his wife.; They planned to ~ the army.; She could not ~ her post.; Friends do not ~ each other.; Why would you ~ us?; I'll never ~ you.
object|ˈɑbʤɛkt|The ~ is made of {quality2}.; What is that ~?; A shiny ~ fell from the sky.; The ~ of the game is to win.; Each ~ has a name.; He was an ~ of fear.; A strange ~ lay {where}.; Move the ~ to the left.; The sentence has no ~.
object|əbʤˈɛkt|I ~ to that remark.; Do you ~?; They may ~ to the {abstract}.; If you ~, speak now.; The lawyers ~ to the question.; We strongly ~.; {name} did not ~ when {pron} {did}.; Why do you ~ to it?
record|ɹˈɛkəɹd|He set a new ~.; Put on a ~.; The ~ was broken {when}.; Keep a ~ of it.; A ~ number of people came.; She has a criminal ~.; We bought an old ~.; For the ~, I agree.; The medical ~ is missing.; My favorite ~ is scratched.
record|ɹəkˈɔɹd|Please ~ the meeting.; They ~ every call.; I want to ~ a message.; Can you ~ the show?; We ~ the temperature daily.; He likes to ~ his voice.; Press here to ~.; She will ~ an album {when}.; Cameras ~ everything.
minute|mˈɪnət|Wait a ~.; I'll be there in a ~.; It takes one ~.; Every ~ counts.; A ~ later {name} {did}.; The last ~ was the hardest.; A ten ~ walk.; Give me a ~ to think.; It only lasted a ~.
minute|mInjˈut|A ~ crack ran across the {artifact}.; The particles are ~.; She described it in ~ detail.; ~ traces of {food} were found.; The difference is ~.; There are ~ holes in the leaf.; He studied the ~ creatures.; A ~ amount is enough.; The cells are ~.
bass|bˈAs|He plays ~ in a band.; The ~ guitar is too loud.; He has a deep ~ voice.; Turn up the ~.; The ~ drum boomed.; She plays the double ~.; The ~ line is simple.; A famous ~ singer.
bass|bˈæs|We caught a ~ in the lake.; The ~ swam away.; Grilled ~ with lemon.; They fish for ~ and trout.; A large ~ took the bait.; Sea ~ is expensive.; He fried the ~ in butter.
use|jˈuz|You can ~ my {artifact}.; May I ~ the phone?; Please ~ the other door.; They ~ it every day.; How do you ~ this?; We ~ water to {vt} it.; ~ a {adj} {artifact}.; I never ~ sugar.
use|jˈus|It is of no ~.; What is the ~ of it?; Put it to good ~.; The {artifact} is in ~.; There is no ~ in crying.; For ~ in the kitchen only.; The ~ of force is wrong.; Its ~ is forbidden.
present|pɹˈɛzᵊnt|I bought a ~ for {name}.; A birthday ~.; Everyone was ~.; At ~ we are busy.; The ~ is wrapped.; No one else was ~.; The past and the ~.; What a lovely ~!
present|pɹəzˈɛnt|They will ~ the prize.; May I ~ my {relative}?; We ~ our results {when}.; {name} will ~ the show.; Please ~ your ticket.; I'd like to ~ a plan.; She has to ~ her work.
content|kˈɑntɛnt|The ~ of the box is secret.; The fat ~ is high.; A table of ~ pages.; Web ~ changes daily.; The ~ was removed.; Check the ~ of the message.; Digital ~ is cheap.
content|kəntˈɛnt|He is ~ with his life.; I felt ~.; She was ~ to wait.; They seem ~.; A ~ cat purred.; We are quite ~ here.; {name} was not ~ with the answer.
produce|pɹədˈus|They ~ {plural}.; We ~ our own {food}.; Cows ~ milk.; Can you ~ proof?; The factories ~ cars.; It may ~ heat.; Bees ~ honey.
produce|pɹˈOdus|Fresh ~ is sold at the market.; The ~ comes from local farms.; Farm ~ is cheap.; The shop sells organic ~.; All the ~ was ripe.; They brought their ~ to town.
permit|pəɹmˈɪt|They do not ~ dogs.; The rules ~ it.; Will you ~ me to speak?; We cannot ~ that.; Time will not ~ it.; Please ~ us to enter.
permit|pˈɜɹmɪt|You need a ~ to fish.; My work ~ expired.; He applied for a ~.; The building ~ was refused.; Show me your ~.; A parking ~ costs {price}.
conduct|kəndˈʌkt|Metals ~ electricity.; She will ~ the orchestra.; They ~ a survey.; We ~ tests every day.; Who will ~ the choir?; He was asked to ~.
conduct|kˈɑndʌkt|His ~ was poor.; A code of ~.; Good ~ is rewarded.; Her ~ surprised us.; The ~ of the war.; They were punished for bad ~.
contract|kˈɑntɹækt|Sign the ~.; The ~ ends in {month}.; He broke the ~.; A new ~ was signed.; Read the ~ with care.; The ~ is worth {price}.
contract|kəntɹˈækt|Metals ~ when they cool.; You may ~ a disease.; The muscles ~.; The economy will ~ {when}.; Cold makes it ~.
project|pɹˈɑʤɛkt|The ~ is finished.; A school ~.; Our ~ began {when}.; The ~ costs {price}.; She leads the ~.; It was a big ~.
project|pɹəʤˈɛkt|Actors must ~ their voices.; They ~ a loss.; We ~ the film onto the wall.; Try to ~ confidence.; The rocks ~ from the cliff.
rebel|ɹˈɛbəl|He is a ~.; A ~ leader was caught.; The ~ army won.; Every ~ was freed.; She was a ~ at school.
rebel|ɹəbˈɛl|The people will ~.; Teenagers often ~.; They chose to ~ against the king.; Why do they ~?; The soldiers began to ~.
insult|ˈɪnsʌlt|That was an ~.; What an ~!; The ~ hurt her.; He took it as an ~.; An ~ to everyone.
insult|ɪnsˈʌlt|Don't ~ me.; He likes to ~ people.; They ~ each other.; I didn't mean to ~ you.; Never ~ the {person}.
increase|ˈɪnkɹis|There was an ~ in crime.; A large ~ in price.; The ~ was small.; A pay ~.; An ~ of {percent} percent.
increase|ɪnkɹˈis|Prices will ~.; We must ~ the speed.; They ~ every year.; To ~ the volume, press here.; Sales may ~ {when}.
excuse|ɪkskjˈuz|Please ~ me.; ~ me, is this seat free?; They will ~ you.; ~ my French.; Nothing can ~ that.
excuse|ɪkskjˈus|That's no ~.; He had a good ~.; What is your ~?; Any ~ will do.; She made an ~.
house|hˈWs|The ~ is {colour}.; We bought a ~.; My ~ is {where}.; An old ~ stood there.; Come to our ~ {when}.
house|hˈWz|They will ~ the refugees.; The museum will ~ the collection.; We can ~ ten people.; Where shall we ~ them?
abuse|əbjˈus|Stop the ~.; The ~ of power.; Drug ~ is a problem.; They suffered ~.
abuse|əbjˈuz|Don't ~ my trust.; They ~ their power.; Never ~ an animal.; Some people ~ drugs.
separate|sˈɛpəɹət|They have ~ rooms.; A ~ question.; Keep them ~.; We paid on ~ bills.; Two ~ roads lead there.
separate|sˈɛpəɹˌAt|Please ~ the eggs.; They want to ~.; ~ the {colour} ones from the rest.; A wall will ~ the gardens.; Oil and water ~.
estimate|ˈɛstəmət|It is only an ~.; Give me an ~ of the cost.; A rough ~ will do.; The ~ was too low.
estimate|ˈɛstəmˌAt|I ~ that it costs {price}.; They ~ the damage.; Can you ~ the cost?; We ~ its age.
moderate|mˈɑdəɹət|A ~ price.; The climate is ~.; He is a ~ man.; Cook over ~ heat.
moderate|mˈɑdəɹˌAt|She will ~ the debate.; Try to ~ your voice.; Winds ~ {when}.
elaborate|ᵻlˈæbəɹət|An ~ plan.; The dress is very ~.; They built an ~ {artifact}.
elaborate|ᵻlˈæbəɹˌAt|Could you ~?; She refused to ~.; Please ~ on that point.
sow|sˈO|They ~ the seeds in {month}.; You reap what you ~.; Farmers ~ wheat.
sow|sˈW|The ~ had ten piglets.; A ~ is a female pig.; The fat ~ lay in the mud.
row|ɹˈO|A ~ of {plural}.; We ~ across the lake.; Sit in the front ~.; Three in a ~.; ~ the boat.
polish|pˈɑlɪʃ|~ the {artifact} well.; Shoe ~ is cheap.; Nail ~ dries fast.; He began to ~ his shoes.
Polish|pˈOlɪʃ|She speaks ~.; The ~ flag is red and white.; He is ~.; We ate ~ soup.; A ~ friend came {when}.
job|ʤˈɑb|She found a new ~.; What is your ~?; A hard ~.; The ~ pays well.
console|kˈɑnsOl|A game ~.; The ~ is broken.; Type it into the ~.; The ~ shows an error.
console|kənsˈOl|I tried to ~ her.; Nothing could ~ him.; They ~ each other.
entrance|ˈɛntɹəns|The ~ is {where}.; Wait at the ~.; The ~ to the {place}.; An {adj} ~.
attribute|ˈætɹəbjˌut|The ~ is missing.; An ~ of the object.; Patience is a good ~.; Each ~ has a value.
attribute|ətɹˈɪbjut|They ~ it to luck.; Scholars ~ the work to {last}.; I ~ my success to you.
buffet|bəfˈA|The ~ is open.; We ate at the ~.; A breakfast ~ is included.; There is a ~ {where}.
resume|ɹəzˈum|We will ~ {when}.; Please ~ your work.; The talks ~ {when}.; The game may ~.
resume|ɹˈɛzəmˌA|Send me your ~.; Her ~ is impressive.; He wrote a ~ and a letter.; A ~ of two pages.
perfect|pˈɜɹfɪkt|A ~ day.; The weather is ~.; Nobody is ~.; That's ~.
perfect|pəɹfˈɛkt|They want to ~ the method.; She tried to ~ her skill.; It took years to ~ it.
invalid|ɪnvˈæləd|The ticket is ~.; An ~ argument.; The value is ~.; That password is ~.
suspect|sˈʌspɛkt|The ~ was caught.; The police have a ~.; A murder ~ escaped.
suspect|səspˈɛkt|I ~ that {pron} {did}.; They ~ him.; Do you ~ anyone?
protest|pɹˈOtɛst|The ~ was loud.; A peaceful ~ began {when}.; They held a ~ {where}.
protest|pɹətˈɛst|They ~ against the war.; I must ~.; Workers will ~ {when}.
import|ˈɪmpɔɹt|The ~ of cars fell.; An ~ tax.; Each ~ is checked.
import|ɪmpˈɔɹt|They ~ coffee.; You can ~ the file.; We ~ {food} from {city}.
transport|tɹˈænspɔɹt|Public ~ is cheap.; The ~ was late.; Road ~ costs more.
transport|tɹænspˈɔɹt|They ~ goods.; Trucks ~ the {food}.; How will you ~ it?
progress|pɹˈɑɡɹɛs|We made good ~.; The ~ is slow.; Work in ~.; Your ~ is good.
progress|pɹəɡɹˈɛs|Let's ~ to the next step.; The disease may ~.; As the days ~, it gets cold.
subject|sˈʌbʤɛkt|Change the ~.; My favorite ~ is history.; The ~ of the letter.
subject|səbʤˈɛkt|They ~ it to heat.; Don't ~ me to that.
"""

CLAUSES = (
    "{0}", "{0}", "{0}", "{0}", "{0}", "I think so. {0}", "{0} That's all.", "Well, you see. {0}", "{0} Of course.",
    "{0} Isn't that so?", "Listen. {0}", "{0} {1}", "{0} {1}", "{1} {0}",
)  # fmt: skip


class Homographs:
    """Endless random sentences: (text, {place of the word: phonemes})."""

    def __init__(self, expand: Callable[[str], str], rng: random.Random):
        self.expand, self.rng = expand, rng
        self.senses = []
        for line in _LINES.strip().splitlines():
            word, said, frames = line.split("|", 2)
            self.senses.append((word, said, [frame.strip() for frame in frames.split(";")]))

    def _frame(self, sense: tuple[str, str, list[str]]) -> tuple[str, dict[int, str]]:
        word, said, frames = sense
        text = self.expand(self.rng.choice(frames))
        place = next(k for k, item in enumerate(text.split()) if "~" in item)
        text = text.replace("~", word)
        return text[0].upper() + text[1:], {place: said}

    def sentence(self) -> tuple[str, dict[int, str]]:
        """One frame, sometimes with another, often of the same word in its other sense."""
        sense = self.rng.choice(self.senses)
        text, forced = self._frame(sense)
        clause = self.rng.choice(CLAUSES)
        other, other_forced = "", {}
        if "{1}" in clause:
            same = [s for s in self.senses if s[0] == sense[0] and s is not sense]
            other, other_forced = self._frame(self.rng.choice(same or self.senses))
        whole = clause.format(text, other)
        shift = len(re.sub(r"\{.\}.*", "", clause).split())
        if clause.startswith("{1}"):
            first = len(other.split())
            return whole, {**other_forced, **{k + first: said for k, said in forced.items()}}
        second = {k + len(text.split()): said for k, said in other_forced.items()}
        return whole, {**{k + shift: said for k, said in forced.items()}, **second}
