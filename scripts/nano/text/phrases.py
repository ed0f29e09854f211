"""Sentence patterns and their slots for the training text: a small grammar of everyday English.

A pattern holds slots in braces. A slot is filled from a list of the same name, whose entries may hold slots again; names
that are not here (nouns, verbs, adjectives by kind) come from WordNet, figures from `grammar.figures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moss_engine.text.spoken.dates import MONTHS
from scripts.nano.text.names import DAYS, FIRST_NAMES, PLACES, SURNAMES
from scripts.nano.text.talk_patterns import COUNTRIES

_SLOT_LINES = """
name: {first} | {first} | {first} | {first} {last} | my brother | my sister | our neighbor | the teacher | my friend {first} | {title} {last} | {title} {last}
title: Mr. | Mrs. | Ms. | Dr. | Professor | Captain | Judge
pron: he | she | they | we | I | you
poss: my | your | his | her | our | their
det: the | the | the | a | this | that | every | another | her | his | my | our | their
relative: mother | father | sister | brother | uncle | aunt | cousin | grandmother | grandfather | son | daughter | wife | husband | nephew | niece | parents | friend | boss | neighbor
colour: red | blue | green | yellow | white | black | gray | brown | orange | pink | purple | golden | silver | dark blue | light green
size: big | small | large | tiny | huge | long | short | tall | wide | narrow | thick | thin | heavy | light | deep | shallow
quality: old | new | fresh | broken | clean | dirty | empty | full | sharp | dull | smooth | rough | soft | hard | hot | cold | warm | cool | wet | dry | bright | dark | loud | quiet | cheap | fine | rare | plain | round | square | straight | crooked | steep | flat | strong | weak | sweet | sour | bitter | ripe | rich | poor | young | wise | brave | kind | calm | proud | lazy | busy | quick | slow | rusty | dusty | muddy | shiny | wooden | stone | iron | glass | paper | leather | cotton | silk | woolen
adj: {size} | {quality} | {quality} | {quality} | {colour} | {wn_adj}
thing: {adj} {artifact} | {artifact} | {adj} {artifact} | {object} | {adj} {object} | {food} | {plant} | {quality} {quality2} {artifact}
quality2: wooden | stone | iron | glass | paper | leather | cotton | silver | brass | copper | clay | straw | plastic | steel
someone: {adj} {person} | {person} | {person} | {animal} | {adj} {animal}
prep: on | under | beside | behind | near | over | in front of | next to | across from | inside | below | above | against | around | between the {artifact} and
where: in the {room} | at the {place} | near the {place} | behind the {place} | in {town} | on the {surface} | by the {water} | under the {surface} | across the street | down the road | at home | at school | at work | upstairs | in the garden | in the yard | on the corner | outside | in the middle of the {room} | at the end of the street | at the edge of the {water}
room: kitchen | bedroom | bathroom | hall | cellar | attic | garage | office | classroom | waiting room | living room | dining room | closet | corridor | lobby | studio | barn | tent
place: station | airport | school | library | museum | bank | church | market | bakery | hotel | restaurant | theater | hospital | pharmacy | post office | park | beach | harbor | bridge | farm | factory | stadium | supermarket | gas station | town hall | corner store | castle | mill | zoo | swimming pool | bookstore | barber shop | parking lot | bus stop | courthouse | lighthouse | playground
surface: table | shelf | floor | roof | wall | bench | desk | counter | bed | carpet | porch | stairs | sidewalk | grass | sofa | windowsill | ladder | stage | deck | tray
water: river | lake | sea | pond | stream | ocean | canal | creek | bay | well | waterfall | shore
town: {city} | {city} | {city} | {city} | the city | the village | the capital | the old town
when: today | yesterday | tomorrow | this morning | last night | last week | next week | on {day} | every {day} | in {month} | before breakfast | after lunch | after dinner | at noon | at midnight | in the evening | early in the morning | late at night | at {clock} | around {clock} | two days ago | {small} years ago | in {small} minutes | once a week | all day long | during the storm | in the spring | last summer | in the fall | every winter | a moment ago | for {small} hours | since {month} | by {day} | until {clock} | on {date} | as soon as possible | at sunrise | just in time
clock: {time} | {time} | half past {hour} | a quarter to {hour} | a quarter past {hour} | {hour} o'clock | ten past {hour} | twenty to {hour}
hour: one | two | three | four | five | six | seven | eight | nine | ten | eleven | twelve
how: slowly | quickly | quietly | carefully | gently | loudly | easily | suddenly | neatly | badly | well | together | alone | again | twice | without a word | with great care | in a hurry | by mistake | on purpose | with a smile | as usual | in the dark | by hand | with ease | in silence | with both hands | step by step | almost every time
feel: happy | sad | tired | hungry | thirsty | angry | sick | proud | nervous | bored | lonely | surprised | worried | excited | cold | warm | sleepy | afraid | ready | sorry | sure | late | early | lost | busy | fine | better | curious | grateful | disappointed | confused | relieved
weather: sunny | cloudy | rainy | windy | foggy | snowy | stormy | freezing | humid | mild | chilly | icy | clear | gray | wet | dry
dish: soup | bread | cheese | rice | pasta | salad | fish | chicken | pizza | cake | pie | pudding | stew | toast | beans | eggs | bacon | pancakes | potatoes | noodles | ice cream | cookies | sandwiches | roast beef | fried fish | mashed potatoes | apple pie | tomato soup | garlic bread | {food}
drink: water | tea | coffee | milk | juice | lemonade | cocoa | cider | hot chocolate | orange juice | green tea | soda
act: {vt} the {thing} | {vt} the {thing} {prep} the {artifact} | {vt} {det} {artifact} | open the {quality} {artifact} | go to the {place} | walk along the {water} | read the {adj} book | write a letter to {name} | call {name} | visit {poss} {relative} | clean the {room} | wash the dishes | bake some {dish} | cook {dish} for dinner | drink a cup of {drink} | buy a {adj} {artifact} | fix the {artifact} | look for the {artifact} | wait for the bus | take the train to {city} | drive to {city} | learn to play the {instrument} | feed the {animal} | paint the {artifact} {colour} | move to {city} | sell the {artifact} | catch the last bus | answer the phone | pay the bill | ask for help | turn off the light | close the door | stay at home | take a walk | go to bed early | help {poss} {relative} | talk about the {abstract} | think about the {abstract}
acted: {vtd} the {thing} | {vtd} the {thing} | {vtd} the {thing} {prep} the {artifact} | {vtd} {det} {artifact} | opened the {quality} {artifact} | went to the {place} | walked along the {water} | read the {adj} book | wrote a letter to {name} | called {name} | visited {poss} {relative} | cleaned the {room} | washed the dishes | baked some {dish} | cooked {dish} for dinner | drank a cup of {drink} | bought a {adj} {artifact} | fixed the {artifact} | looked for the {artifact} | waited for the bus | took the train to {city} | drove to {city} | learned to play the {instrument} | fed the {animal} | painted the {artifact} {colour} | moved to {city} | sold the {artifact} | caught the last bus | answered the phone | paid the bill | asked for help | turned off the light | closed the door | stayed at home | took a walk | went to bed early | helped {poss} {relative} | talked about the {abstract} | thought about the {abstract}
moved: slid | rolled | fell | lay | stood | sat | jumped | slipped | rested | floated | hung | shone | crawled | landed | dropped | leaned | sank | swung | bounced | spun | drifted | rose | spread | ran | crept | flew | stopped | burned | grew | waited | vanished | appeared | stayed | hid | slept | danced | marched | climbed | rattled | shook
did: came | went | slept | worked | waited | ran | swam | sang | danced | laughed | cried | smiled | left | arrived | fell | spoke | listened | played | studied | traveled | cooked | shouted | whispered | yawned | waved | nodded | returned | got lost | sat down | stood up | woke up | gave up | grew up | calmed down | stayed up | moved away
modal: can | could | should | must | will | would | might | may | won't | can't | shouldn't | didn't | doesn't want to | has to | wants to | tried to | likes to | forgot to | hopes to | decided to | used to | plans to | refused to | began to | needs to | is going to
instrument: piano | guitar | violin | flute | drums | trumpet | cello | harp | organ | banjo
link: because | while | but | so | and | although | until | before | after | since | whenever | even though | as soon as
prefix: I think | I guess | I am sure | We know | She said | He told me | They say | It seems | I hope | You see, | Of course, | Sometimes | Maybe | As far as I know, | To be honest, | In fact, | By the way, | Luckily, | Unfortunately, | At first, | In the end, | Later, | Usually, | Once again, | On the other hand, | For example,
"""

_PATTERN_LINES = """
The {adj} {artifact} {moved} {prep} the {adj} {artifact}.
The {someone} {moved} {prep} the {adj} {object}.
The {someone} {acted}.
The {someone} {acted} {when}.
The {someone} {acted} {how}.
The {artifact} and the {artifact} {moved} {prep} the {artifact}.
The {adj} {artifact} was {vtp} by the {someone}.
A {adj} {artifact} is hard to {vt}.
A {adj} {artifact} is easy to {vt}.
{Pos} {adj} {artifact} {moved} {prep} the {surface}.
{food} and {food} make a {adj} meal.
The {person} {vtd} the {thing} and {vtd} the {artifact}.
The {person} of the {place} {vtd} the {adj} {artifact}.
{vt} the {artifact} {prep} the {adj} {object}.
{vt} the {thing} and {vt} the {thing}.
{vt} the {artifact} {how}, please.
The {plant} grew {prep} the {adj} {artifact}.
Two {plural} and a {adj} {artifact} {moved} {prep} the {surface}.
The {plural} were {vtp} with {adj} {food}.
{small} {plural} {moved} {prep} the {place}.
The {adj} {plural} {moved} {how} {where}.
There is a {thing} {where}.
There are {small} {plural} {where}.
There was a {thing} {prep} the {adj} {artifact}.
It is {feelz} to {act}.
{name} {acted}.
{name} {acted} {when}.
{name} {did} {when}.
{name} {did} {where}.
{name} {modal} {act}.
{name} {modal} {act} {when}.
{name} and {name} {acted} {when}.
{name} {acted} {link} {pron} {acted}.
{name} {acted} {link} the {someone} {did}.
When {name} {did}, the {someone} {acted}.
If you {act}, {pron} will {act}.
If {name} comes {when}, we can {act}.
After {pron} {acted}, {pron} {acted}.
While the {someone} {did}, {name} {acted}.
{prefix} {name} {acted}.
{prefix} the {thing} is {where}.
{prefix} {pron} {acted} {when}.
I {acted} {when}.
We {acted} {when}, and then we {acted}.
They {acted}, but {name} {did}.
She {acted} {where}.
He {acted} {how}.
You should {act} {when}.
I would like to {act} {when}.
Let's {act} {when}.
Please {act} {when}.
Please {act}, {act}, and {act}.
Don't {act} {when}.
Could you {act}, please?
Can you {act} for me?
Would you like to {act} {when}?
Do you want to {act} with us?
Do you want {drink} or {drink}?
Did {name} {act} {when}?
Did you {act}?
Have you ever {vtp} a {adj} {artifact}?
Why did the {someone} {act}?
When will {name} {act}?
Where is the {adj} {artifact}?
Where did {name} put the {artifact}?
Who {acted} {when}?
How far is it from {city} to {city}?
How many {plural} are there {where}?
How much is the {adj} {artifact}?
What did {name} say about the {artifact}?
Which {artifact} do you like better, the {colour} one or the {colour} one?
What a {adj} {artifact}!
What time does the {place} open {when}?
Is this {poss} {artifact} or {poss} {artifact}?
Are the {plural} ready?
Aren't you {feel}?
I am {feel} today.
{name} was {feel} {link} the {artifact} was {quality}.
We are {feel}, so let's {act}.
The weather {where} is {weather} and {weather}.
It will be {weather} in {city} {when}.
It is {temp} degrees in {city} {when}.
The high today is {temp} degrees, and the low is {temp}.
My {relative} lives in {city} with {small} {plural}.
{Pos} {relative} works at the {place} in {city}.
{Pos} {relative} was born in {city} in {year}.
{Pos} {relative} is {age} years old.
{name} was born on {date}, {year}.
The {place} opens at {time} and closes at {time}.
The train to {city} leaves at {time} from platform {small}.
The bus number {count} stops {where}.
Flight {count} to {city} leaves from gate {small} at {time}.
The meeting is on {day}, {date}, at {time}.
The meeting with {name} was moved to {day}.
We will meet {name} on {day} at {clock}.
See you on {day} at {clock}.
It costs {price}.
The {adj} {artifact} costs {price}.
I paid {price} for the {artifact} and {price} for the {artifact}.
The price of {food} rose from {price} to {price}.
The {artifact} is {decimal} meters long and {decimal} meters wide.
{city} is {count} kilometers from {city}.
{city} has a population of {big}.
We need {small} kilograms of {food} and {small} liters of {drink}.
Add {small} cups of {food} and {fraction} of a cup of {drink}.
{percent} percent of the {plural} are {quality}.
About {percent}% of people like {dish}.
The score was {small} to {small}.
My phone number is {phone}.
You can reach {name} at {phone}.
The room number is {count}, on the {ordinal} floor.
Please open your books to page {count}.
Chapter {small} begins on page {count}.
He finished in {ordinal} place with {decimal} points.
In {year}, {name} moved to {city}.
Between {year} and {year}, the {place} was closed.
The company was founded in {year} and has {big} employees.
On {date}, {year}, the {place} in {city} opened its doors.
Today is {day}, {date}.
The total is {price}, including tax.
Take {small} tablets every {small} hours.
{small} plus {small} equals {sum}.
The address is {count} {last} Street, {city}.
{name} lives at {count} {tree} Avenue.
Turn left at the {place}, then go straight for {count} meters.
Go past the {place} and turn right at the {place}.
Hello, my name is {first} {last}.
Good morning, {name}.
Good evening, and welcome to {city}.
Hi {first}, how are you today?
Thank you, {first}, that was very kind of you.
Nice to meet you, {title} {last}.
Excuse me, where is the {place}?
I'm sorry, I didn't {vt} the {artifact}.
Yes, I {acted} {when}.
No, {pron} never {acted}.
Well, {pron} {acted} {when}.
Oh, that is {poss} {artifact}.
That's a {adj} idea.
I don't know where the {artifact} is.
I can't find {poss} {artifact}.
I've never {vtp} a {artifact} like that.
We've {vtp} the {artifact} {small} times.
She's {vtp} the {thing}.
They're {ving} the {thing} {where}.
I'm {ving} {det} {artifact}.
He's {ving} the {artifact} {when}.
{name} is {ving} the {thing} {where}.
The {someone} was {ving} the {artifact} when {name} {did}.
{ving} a {artifact} takes {small} hours.
{name} enjoys {ving} {plural}.
"{vt} the {artifact}," said {name}.
"Where is the {artifact}?" asked the {person}.
For breakfast we had {dish}, {dish}, and {drink}.
{name} likes {dish}, but {pron} prefer {dish}.
The {dish} tastes better with {food}.
I ordered {dish} and a glass of {drink}.
You need {food}, {food}, and {food}.
The {animal} chased the {animal} {prep} the {artifact}.
A {adj} {animal} {moved} {prep} the {object}.
The {animal} is {size}, {colour}, and {quality}.
{Plur} and {plural} are sold at the {place}.
The {place} is full of {adj} {plural}.
The {abstract} of the {artifact} is {wn_adj}.
The {abstract} was {wn_adj}, and the {abstract} was {wn_adj}.
{name} spoke about {abstract} and {abstract}.
The {person} explained the {abstract} {how}.
It was the {wn_adj} {abstract} of a {wn_adj} {person}.
Nobody {vtd} the {abstract} of the {person}.
Every {person} needs {abstract}.
His {body} hurt after the {event}.
Raise your {body} and {vt} the {artifact}.
The {event} began {when} {where}.
The {event} {where} was {wn_adj}.
We watched the {event} from the {surface}.
The {body} of the {animal} is {colour}.
A {person}, a {person}, and a {person} {did} {where}.
The {person} lost {poss} {artifact} {where}.
The {person} with the {colour} {artifact} {acted}.
The {artifact} that {name} {vtd} was {quality}.
The {person} who {vtd} the {artifact} {did} {when}.
Not only {name} but also the {person} {acted}.
The more you {vt}, the better you {vt}.
As the {object} {moved}, the {plural} {moved} too.
The {quality} {artifact} {moved} as the {person} {did}.
Both the {artifact} and the {artifact} are {quality}.
Neither {name} nor {name} {acted}.
At {time} the {person} {acted}, and at {time} {pron} {did}.
It took {small} {plural} to {vt} the {artifact}.
Most {plural} are {quality}, but some are {quality}.
The {adj} {food} was {vtp} in a {adj} {artifact}.
A {artifact} of {food} helps to {vt} the {abstract}.
Call {phone} or {phone}.
Dial {phone}, and if nobody answers, dial {phone}.
The number is {phone}, not {phone}.
The code is {digits}.
My code is {digits}, and {name} has {digits}.
Account {digits} belongs to {name}.
The numbers are {small}, {small}, {small}, {small}, and {small}.
"""


def _slots() -> dict[str, list[str]]:
    slots = {}
    for line in _SLOT_LINES.strip().splitlines():
        name, _, options = line.partition(": ")
        slots[name] = [option.strip() for option in options.split(" | ")]
    return slots


SLOTS: Mapping[str, Sequence[str]] = {
    **_slots(),
    "first": FIRST_NAMES,
    "last": SURNAMES,
    "city": PLACES,
    "country": COUNTRIES,
    "month": MONTHS,
    "day": DAYS,
    "tree": "Oak Pine Maple Cedar Elm Park Lake Hill River Forest Church School Mill Garden Washington".split(),
    "feelz": "easy hard nice good fun better wise dangerous important useful impossible strange kind rude".split(),
    "Pos": "My Your His Her Our Their".split(),
}
PATTERNS: Sequence[str] = _PATTERN_LINES.strip().splitlines()

IRREGULAR = {  # base: past, participle
    line.split()[0]: tuple(line.split()[1:])
    for line in """break broke broken|bring brought brought|build built built|buy bought bought
catch caught caught|choose chose chosen|cut cut cut|draw drew drawn|drink drank drunk|drive drove driven|eat ate eaten|feed fed fed
feel felt felt|find found found|forget forgot forgotten|get got gotten|give gave given|grow grew grown|hang hung hung|hear heard heard
hide hid hidden|hit hit hit|hold held held|keep kept kept|know knew known|lead led led|leave left left|lend lent lent|lose lost lost
make made made|mean meant meant|meet met met|pay paid paid|put put put|read read read|ride rode ridden|ring rang rung|see saw seen
sell sold sold|send sent sent|set set set|shake shook shaken|show showed shown|shut shut shut|sing sang sung|speak spoke spoken
spend spent spent|spread spread spread|steal stole stolen|stick stuck stuck|sweep swept swept|take took taken|teach taught taught
tear tore torn|tell told told|throw threw thrown|understand understood understood|wear wore worn|win won won|wind wound wound
write wrote written|bend bent bent|bind bound bound|bite bit bitten|blow blew blown|dig dug dug|freeze froze frozen|lay laid laid
light lit lit|spin spun spun|split split split|string strung strung|swing swung swung|weave wove woven|fold folded folded
sew sewed sewn|sow sowed sown|shoot shot shot|sink sank sunk|slide slid slid|stretch stretched stretched|begin began begun
bear bore borne|beat beat beaten|become became become|hurt hurt hurt|let let let|quit quit quit|seek sought sought|shrink shrank shrunk
sting stung stung|think thought thought|forgive forgave forgiven|forbid forbade forbidden|overcome overcame overcome""".replace(
        "\n", "|"
    ).split("|")
}
