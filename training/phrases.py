"""Phrases of the story generator: openings, closings, mini stories, couplets, requests. plots.py explains the marks."""
from words import table


def lines(text: str) -> list[str]:
  """Splits a block into entries, one a line; an indented line continues the one above."""
  return text.strip().replace("\n  ", " ").splitlines()


def options(text: str) -> list[str]:
  """Splits a block into entries at '|' and line ends."""
  return [o for line in text.strip().splitlines() for o in line.split("|")]


SECRETS = table("""
a hidden garden|Flowers of every colour grew there, and they rang like little bells.
a room full of clocks|Every clock showed a different time, and all of them were right somewhere.
a staircase that led into the sky|The steps were made of mist, and yet they carried every weight.
a pond that showed the future|In the water, one could see the weather of tomorrow.
a library without an end|The books were warm, and some of them snored.
a cave full of crystals|The walls glittered like the sky at night.
a tiny village, no bigger than a table|Little lights shone in the windows, and somebody was playing a fiddle.
a tree that could talk|It spoke slowly, one word an hour, and it only said kind things.
a door to the land of dreams|Sheep flew through the air, and the grass was as blue as the sea.
a nest with a golden egg|It was warm, and something was knocking inside.
a forgotten boat|Its sails were white, and on its side stood the word "Hope".
a workshop full of toys|The toys moved as soon as nobody looked.
""")

SEEDS = table("""
a tiny seed|a sunflower stood there, taller than the roof
an acorn|an oak stood there, with room for seven nests
a wrinkled bean|a green ladder of leaves reached up to the chimney
an apple seed|an apple tree stood there, full of red apples
a cherry stone|a cherry tree stood there, white with blossom
a strange blue seed|a flower opened that shone in the dark
a pumpkin seed|a pumpkin lay there, as big as a coach
a rose cutting|a rose bush climbed all the way up to the window
""")

RIDDLES = table("""
What has roots but is never seen to grow?|A mountain
What runs but has no legs?|A river
What gets bigger the more you take away?|A hole
What has teeth but cannot bite?|A comb
What goes up and never comes down?|My age
What can you break without touching it?|A promise
What is always coming but never arrives?|Tomorrow
What follows you all day and leaves you at night?|My shadow
""")

WISHES = table("""
I were as big as a house|to be as big as a house|Now {he} did not fit through any door, and everyone ran away.
I were as small as an ant|to be as small as an ant|Now every drop of rain was a flood, and nobody heard {him} call.
I could fly to the moon|to fly to the moon|It was cold and silent up there, and there was nobody to talk to.
everything I touch turned to gold|that everything turned to gold|The bread turned to gold, the pillow turned to gold,
  and {he} was hungry and sad.
it were summer for ever|for a summer without end|The flowers dried up, and the river became a thin thread.
I were invisible|to be invisible|Now nobody said hello, and everyone sat down on {him}.
I were the king of the world|to be the king of the world|Now everyone bowed, but nobody laughed with {him} any more.
I had all the cakes in the world|for all the cakes in the world|After the tenth cake {he} felt sick, and the others
  had none.
I never had to sleep|never to sleep again|The nights were long and lonely, because everyone else was asleep.
I were somebody else|to be somebody else|In the mirror was a stranger, and nobody knew {his} name.
I were very rich|to be very rich|Now {he} had to guard the gold all day and all night.
""")

RACE_ENDS = table("""
{F} was so sure of winning that {fhe} lay down for a nap under a tree. {H} went past on tiptoe. When {f} woke up, {h}
  was just crossing the line, and everybody cheered.|{n} won the race.
Shortly before the end, {f} fell and hurt a foot. {H} could have won. But {he} stopped, put an arm around {f} and
  helped {fhim} along. They crossed the line together.|Nobody won alone. {n} and {fn} crossed the line together.
{F} took a short cut and got stuck in the brambles. {H} stayed on the path, step by step, and reached the end
  first.|{n} won the race.
In the end {f} was faster, just by a nose. But {h} had run better than ever before, and the people cheered for both of
  them.|{fn} won, but {n} ran better than ever before.
""")

INTROS = lines("""
[Once upon a time|Long ago|Once], {setting}, there lived {ha} named {n}.
{n} was {ha} who lived {setting}.
{setting_c} lived {ha} [called|named|by the name of] {n}.
There once was {ha} named {n}, and {his} home was {setting}.
[Have you heard of|Do you know the tale of] {n}, {ha}? {He} lived {setting}.
{ha_c} named {n} lived {setting}.
[Not so long ago|Many years ago|In the days of your grandmother's grandmother], {ha} lived {setting}. {His} name was
  {n}.
Everybody {setting} knew {n}, {ha} with [bright eyes|a warm smile|a good heart|a crooked little hat].
It was [a cold winter|a warm summer|a golden autumn|a rainy spring], and {n}, {ha}, [was sitting outside|was looking
  out at the sky] {setting}.
Far away, {setting}, there was {ha}. [They called {him}|{His} name was|Everyone called {him}] {n}.
""")

INTROS_WITH = lines("""
This is the story of {ha} named {n} and {x}. It happened {setting}.
[Once upon a time|Long ago], {setting}, there lived {ha} named {n}. This is the tale of {n} and {x}.
[Have you heard of|Do you know the story of] {ha} named {n} and {x}? [It goes like this|Then listen]. It began
  {setting}.
{n} was {ha} who lived {setting}. {He} did not know yet that {x} would change {his} life.
{x_c} and {ha}: that is how this story begins. The {k} was called {n} and lived {setting}.
{setting_c} lived {ha} named {n}. [Whenever people spoke of {him}, they also spoke of {x}|Let me tell you about {him}
  and {x}].
There once was {ha} named {n}, and there was {x}. Both of them belong to this story, which took place {setting}.
""")

INTROS_THEME = lines("""
This is a story about {x}. {setting_c} lived {ha} named {n}.
[If you want to know about|Let me tell you something about] {x}, listen to the tale of {n}, {ha} who lived {setting}.
Once upon a time, {setting}, {ha} named {n} learned something about {x}. It happened like this.
{n} was {ha} who lived {setting}. {He} often thought about {x}.
""")

CLOSERS = lines("""
And {he} never forgot that day.
And if you listen well at night, you can hear them laughing.
That evening, {n} fell asleep with a smile.
And so everything was well again.
And they all lived happily for many years.
And that is the end of the story.
The end.
And what happened next? That is another story.
"Tomorrow," said {n}, "is a new day."
The moon looked down and seemed to smile.
""")

MINIS = lines("""
One day {he} found {ao} {hide}. {He} gave it to {fn}, {his} best friend, who [had lost it|needed it more]. That
  evening, they both [slept well|were happy].
{He} wanted to see what was behind the hill. So {he} walked and walked, and behind the hill was {fn}, {a_f}, who
  wanted to see what was on this side. They laughed and became friends.
{He} was afraid of {fear}. Then {fn}, {a_f}, took {his} hand, and together it was only half as bad. After a while, it
  was not bad at all.
Every evening {he} looked at the stars and counted them. One night {fn}, {a_f}, sat down beside {him} and counted,
  too. They never reached the end, but they did not mind.
{He} had {food_a} and was about to eat it. Then {he} saw {fn}, {a_f}, who had nothing. {He} broke it in two, and it
  tasted twice as good.
One morning it began to rain, and everyone stayed inside. Only {n} went out and jumped into every puddle. Soon {fn},
  {a_f}, came out, too, and then everyone else. It was the best day of the year.
{He} lost {ao} and looked for it everywhere. In the end {fn}, {a_f}, found it {hide}. "Thank you!" said {n}, and the
  two had tea together.
{He} tried to learn to {skill}. It went wrong ten times. The eleventh time it worked, and {fn}, {a_f}, clapped until
  {fhis} hands were red.
One winter night, a strange light fell from the sky. {n} followed it and found {fn}, {a_f}, who was building a lamp.
  "I wanted to make it less dark for everyone," {fhe} said.
""")

# couplets: two rhyming lines split by " / "; {x} is the topic with an article
COUPLETS = lines("""
{X} looked up at the sky / and watched the little clouds go by.
The sun was warm, the wind was mild, / {x} sat down and softly smiled.
The moon came out, the stars shone bright, / {x} walked slowly through the night.
{X} lived beside the sea, / as happy as a thing can be.
Over the hill and down the lane / came {x} in the summer rain.
The birds all sang a merry song, / {x} hummed the tune along.
{X} dreamed of a distant land / with silver trees and golden sand.
When winter came with ice and snow, / {x} made the candles glow.
"Good night," said {x}, "sleep tight, my dear, / and do not worry, I am here."
{X} had a friend who was kind and true, / they shared their bread and their secrets, too.
The day was long, the way was far, / {x} was guided by a star.
And so we leave them, you and I, / beneath the wide and starry sky.
{X} danced until the break of day / and chased the gloomy clouds away.
A little light, a little tune, / {x} was singing to the moon.
The grass was green, the sky was blue, / {x} was smiling just for you.
""")

REQUESTS = options("""
Tell me a story about {t}.|Tell me a story about {t}|Write a story about {t}.|Write a short story about {t}.
Tell me a story about {t}, please.|Can you tell me a story about {t}?|Could you tell me a tale about {t}?
Please tell me a story about {t}.|I want a story about {t}.|I would like to hear a story about {t}.
A story about {t}, please.|Story about {t}|Do you know a story about {t}?|Tell a story about {t}
Make up a story about {t}.|Please write a story about {t}|Tell me a bedtime story about {t}.|Give me a story about {t}
Can you write a story about {t}?|Tell me a tale about {t}.|Write me a story about {t}|Let me hear a story about {t}.
Tell us a story about {t}!|I'd like a story about {t}|How about a story about {t}?|Write a fairy tale about {t}.
Tell me a short story about {t}.|{t}|{t}, please|Now tell me a story about {t}.
""")

SHORT = options("""
Tell me a very short story about {t}.|Write a tiny story about {t}.|Tell me a story about {t} in a few sentences.
A very short story about {t}
""")

POEM = options("""
Write a poem about {t}.|Write a short poem about {t}|Can you write a poem about {t}?|Tell me a poem about {t}.
A poem about {t}, please.|Write a rhyme about {t}.|Make up a poem about {t}
""")

OPEN = options("""
Tell me a story.|Tell me a story|Can you tell me a story?|Write a story.|I want to hear a story.
Please tell me a story|A story, please!|Story|Do you know a good story?|Tell me something.|Surprise me
Tell me a bedtime story.|Tell me a tale|Yes, please tell me a story.|Write something nice.
""")

MORE = options("""
Tell me another one.|Another one, please.|Tell me another story.|One more, please|More|Another story
Can you tell me another one?|One more!|I want another story.|Again!|And another one?|Next story please
""")

LIKED = options("""
I liked that story.|That was nice.|What a nice story!|Great story!|That was lovely, thank you.|Nice story|Good story!
I love it!|Thank you for the story
""")

LIKED_ANSWERS = options("""
I am glad that you liked it! Would you like another one?|Thank you! Shall I tell you another one?
That makes me happy! I know many more.|Thank you! Just name a topic for the next one.|I am happy to hear that!
""")

# request | plots that answer it; {d} is the hero with an article
PLOT_ASKS = table("""
{d} who builds {structure}|build
two friends who build {structure}|build
{d} and a {friend} who become friends|moving
a race between a {hero} and a {friend}|race
the friendship between a {hero} and a {friend}|moving quarrel
{d} who lost {his} {obj}|lost
{d} who cannot find {his} {obj}|lost
{d} who gets lost in the {wild}|astray
{d} who is lost|astray
{d} who tricks a {villain}|trick
{d} who keeps a promise|promise
{d} who discovers {secret}|secret
{d} who plants {seed}|plant
{d} who wins a cooking contest|contest
{d} who saves a {friend} in a storm|storm
{d} and a great storm|storm
{d} who makes a wish|wish
{d} who shares {food_a}|share
{d} and the missing {food}|mystery
{d} who solves a mystery|mystery
a quarrel between a {hero} and a {friend}|quarrel
two friends who quarrel|quarrel
{d} who gives a {friend} a birthday present|gift
{d} who goes on a long journey|quest
a lazy {friend} and a busy {hero}|lazy
{d} who meets a {friend}|moving visitor share
{d} who tells a lie|honesty
{d} who opens the door to a stranger|visitor
{d} who learns to be brave|fear
{d} who helps a {friend}|storm share
""")

REPEAT = options("""
Repeat: {t}|Repeat after me: {t}|Say these words: {t}|Please repeat: {t}|Say: {t}|Copy this: {t}
""")

BEGIN = options("""
Begin a story about {t}.|Write the first sentence of a story about {t}.|How would a story about {t} begin?|Start a story about {t}
""")

SENTENCE = options("""
Make a sentence with {x} and {y}.|Write a sentence with the words {x} and {y}.|Use {x} and {y} in a sentence.|A sentence with {x} and {y}, please.
""")

SENTENCES = lines("""
The {x} [found|lost|saw|liked|painted|dreamed of] the {y}.
One day, the {x} [met|found|heard of] the {y}.
"Where is my {y}?" asked the {x}.
The {x} and the {y} [went {into}|were the best of friends|looked at the moon].
A {x} [cannot live without|is not afraid of|knows all about] a {y}.
Every evening, the {x} [talked to|thought of|smiled at] the {y}.
Nobody knew that the {x} had a {y}.
"Look, a {y}!" said the {x}.
""")
