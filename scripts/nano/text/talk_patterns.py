"""More sentence patterns: conversation with contractions, questions, news, instructions. Slots as in `phrases`."""

from __future__ import annotations

PATTERNS = """
What's {poss} name?
What's the matter with {poss} {artifact}?
What's going on {where}?
What're you doing {when}?
What'd {name} say?
Where's the {artifact}?
Where's {poss} {relative}?
Where're the {plural}?
Who's there?
Who's that {person}?
Who'd {vt} a {adj} {artifact}?
How's {poss} {relative}?
How'd you {vt} it?
When's the {event}?
Why's it so {quality}?
That's what I said.
That'll be {price}.
That'd be {feelz}.
It'll be {weather} {when}.
It'd be {feelz} to {act}.
It's {feelz}, isn't it?
There's a {adj} {artifact} {where}.
There'll be {plural} {where}.
There're {small} {plural} {where}.
I'd {act} if I were you.
I'd've {vtp} the {artifact} myself.
You'd've {vtp} it, too.
We'd've been late.
They'd've {vtp} the {artifact} by now.
She'd've told us.
He should've {vtp} the {artifact}.
You shouldn't've {vtp} it.
We could've {vtp} the {thing}.
They might've {vtp} the {plural}.
{name} must've {vtp} it {when}.
They wouldn't've come.
I'll {act} {when}.
You'll see.
He'll {act}, won't he?
She'd never {act}.
We're late, aren't we?
They've {vtp} the {artifact}, haven't they?
You haven't {vtp} it, have you?
You can't {act} here, can you?
{name} doesn't like {dish}, does {pron}?
Let's go, shall we?
Y'all come back {when}.
Ain't that {feelz}?
I mustn't {act}.
We needn't {act}.
It isn't {quality}, it's {quality}.
I'm not sure that's a good idea.
Don't you think so?
Isn't it {weather} today?
Aren't they {feel}?
Didn't {name} {act}?
Won't you {act}?
Can't we {act} {when}?
Couldn't you {act}?
Is it far to {city}?
Is {name} at home?
Are you {feel}?
Was it {quality}?
Were you {where} {when}?
Do you like {dish}?
Does {name} live {where}?
Has {name} {vtp} the {artifact}?
Have they {vtp} it?
Will it be {weather} {when}?
Would {name} like some {drink}?
Should we {act}?
May I {vt} your {artifact}?
Really?
Are you sure?
Is that so?
Is that right?
And then?
Why not?
What for?
Which one?
Who else?
How come?
Ready?
{food}?
{name}?
Tea or coffee?
Yes, of course.
No, not at all.
Oh, no!
Thanks a lot, {first}.
You're welcome.
See you later, {first}.
Good night, everyone.
Happy birthday, {first}!
Congratulations!
Sorry, I didn't hear you.
Sorry I'm late.
Never mind.
I beg your pardon?
Hold on a second.
Hang on, {first}.
Take care.
Of course I can.
Well, that's that.
Hm, let me think.
Look, there's {name}!
Hey, {first}, over here!
Come on, let's {act}!
"{act}," {name} said, "or {act}."
"I can't {act}," said {name}.
"Why did {name} {act}?" {pron} asked.
"It's {feelz} to {act}," the {person} told us.
"Are you {feel}?" asked {name}.
"No," said the {person}, "but I'm {feel}."
{name} asked if {pron} could {act}.
{name} said that {pron} {acted} {when}.
{name} wondered whether the {artifact} was {quality}.
The {person}, who {acted}, {did}.
The {artifact}, which {name} {vtd} {when}, is {quality}.
{name}, the {person} from {city}, {acted}.
In {city}, {name} {acted}, {did}, and {acted}.
First, {act}; then, {act}; finally, {act}.
On the one hand, it is {quality}; on the other hand, it is {quality}.
The {artifact} is {quality}, the {object} is {quality}, and the {food} is {quality}.
It was {weather}, it was {quality}, and nobody {did}.
He {did}, {did}, and then, quite suddenly, {did}.
There are three things: {food}, {abstract}, and {plural}.
One thing is clear: {name} {acted}.
The government of {country} plans to {vt} the {abstract}.
The president of {country} met {title} {last} in {city} {when}.
The minister said that taxes would rise by {percent} percent.
Police in {city} arrested {small} people {when}.
Voters in {country} go to the polls {when}.
Prices rose by {percent} percent in {month}, the agency said.
The company reported a profit of {price} for the quarter.
Shares of the company fell {percent} percent on {day}.
A fire broke out at the {place} in {city} {when}.
At least {count} people were injured {when}, officials said.
Researchers at the {place} found that {plural} can {vt} {food}.
The court in {city} ruled that the {abstract} was legal.
{title} {last} won the {event} in {city}.
The team from {city} beat {city} {small} to {small}.
Heavy rain flooded the {place} {when}.
The bridge between {city} and {city} will be closed for repairs {when}.
A spokesman for the {place} declined to comment.
The strike began on {day} and is expected to last {small} days.
Experts warn that the {abstract} could {vt} the {abstract}.
The talks between {country} and {country} ended without a result.
The new law takes effect in {month}.
If the file does not exist, it is created.
By default, the {artifact} is {quality}.
This option is used to {vt} the {artifact}.
The function returns the number of {plural}.
The value must be greater than {count}.
Click the {artifact} icon to {vt} the {thing}.
To {act}, press the {colour} button.
Before you {act}, make sure that the {artifact} is {quality}.
Note that the {artifact} is not {vtp} until you {act}.
For more information, see chapter {small}.
For example, {plural} are {vtp} by the {person}.
As a result, the {artifact} is {quality}.
However, {plural} are rarely {quality}.
In other words, the {abstract} is {wn_adj}.
Therefore, we {vt} the {artifact} {how}.
Each {artifact} contains {count} {plural}.
A {artifact} consists of a {artifact}, a {artifact}, and {small} {plural}.
Unless you {act}, the {artifact} will be {vtp}.
The first argument is the {artifact}; the second is the {object}.
An error occurs when the {artifact} is missing.
Warning: the {artifact} is {quality}.
Step {small}: {vt} the {artifact}.
""".strip().splitlines()

COUNTRIES = """
France Germany Spain Italy Portugal Austria Switzerland Belgium Denmark Norway Sweden Finland Iceland Poland Hungary Romania
Bulgaria Greece Turkey Russia Ukraine Egypt Morocco Kenya Nigeria Ghana India Pakistan China Japan Korea Vietnam Thailand Indonesia
Malaysia Australia Canada Brazil Argentina Chile Peru Colombia Cuba Israel Jordan Lebanon Iran Iraq Nepal Estonia Latvia Lithuania
Croatia Serbia Slovenia Slovakia Cyprus Malta Ireland Scotland Wales England Mexico Panama Guatemala Honduras Ecuador Bolivia
Paraguay Uruguay Venezuela Jamaica Haiti Libya Algeria Tunisia Sudan Ethiopia Somalia Uganda Tanzania Rwanda Zambia Zimbabwe Botswana
Namibia Angola Senegal Mali Niger Chad Cameroon Gabon Afghanistan Kazakhstan Mongolia Bangladesh Myanmar Cambodia Laos Singapore
""".split()
