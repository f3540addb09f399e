"""Word lists of the story generator.

Tables have one row a word and fields split by '|'. Lists are split by spaces; '_' stands for a space in an entry.
"""


def words(text: str) -> list[str]:
  """Splits a block of words; an underscore stands for a space inside one entry."""
  return [w.replace("_", " ") for w in text.split()]


def table(text: str) -> list[list[str]]:
  """Splits a block of rows into fields; an indented line continues the row above."""
  text = text.strip().replace("\n  ", " ")
  return [[f.strip() for f in row.split("|")] for row in text.splitlines() if row.strip()]


# name | baby | home | food | sound verb | size 1-9 | body cover | colours
ANIMALS = table("""
fox|kit|den|berries|barks|4|fur|red
wolf|pup|den|meat|howls|5|fur|grey
bear|cub|cave|honey|growls|7|fur|brown
rabbit|kit|burrow|carrots|squeaks|2|fur|white
hare|leveret|field|grass|squeaks|3|fur|brown
mouse|pup|hole|cheese|squeaks|1|fur|grey
rat|pup|hole|grain|squeaks|2|fur|grey
hedgehog|hoglet|pile of leaves|beetles|snuffles|2|spines|brown
squirrel|kit|hollow tree|nuts|chatters|2|fur|red
badger|cub|sett|roots|grunts|4|fur|black and white
otter|pup|river|fish|whistles|4|fur|brown
beaver|kit|lodge|bark|slaps its tail|4|fur|brown
mole|pup|tunnel|worms|squeaks|1|fur|black
deer|fawn|forest|leaves|bleats|6|fur|brown
moose|calf|forest|leaves|bellows|8|fur|brown
cat|kitten|warm house|fish|meows|3|fur|orange
dog|puppy|kennel|bones|barks|4|fur|brown
horse|foal|stable|hay|neighs|8|hair|brown
pony|foal|stable|apples|neighs|7|hair|white
donkey|foal|stable|hay|brays|7|hair|grey
cow|calf|barn|grass|moos|8|hair|black and white
bull|calf|field|grass|bellows|8|hair|black
pig|piglet|sty|turnips|oinks|6|skin|pink
sheep|lamb|meadow|grass|bleats|5|wool|white
goat|kid|hillside|leaves|bleats|5|hair|white
llama|cria|mountain|grass|hums|7|wool|white
camel|calf|desert|thorny leaves|grunts|8|hair|yellow
chicken|chick|coop|corn|clucks|2|feathers|white
hen|chick|coop|corn|clucks|2|feathers|brown
rooster|chick|coop|corn|crows|2|feathers|red
duck|duckling|pond|water plants|quacks|2|feathers|brown
goose|gosling|pond|grass|honks|3|feathers|white
swan|cygnet|lake|water plants|hisses|4|feathers|white
owl|owlet|hollow tree|mice|hoots|2|feathers|brown
eagle|eaglet|nest|fish|screams|4|feathers|brown
hawk|chick|nest|mice|screeches|3|feathers|brown
crow|chick|nest|corn|caws|2|feathers|black
raven|chick|nest|seeds|croaks|3|feathers|black
magpie|chick|nest|beetles|chatters|2|feathers|black and white
robin|chick|nest|worms|sings|1|feathers|red
sparrow|chick|nest|seeds|chirps|1|feathers|brown
swallow|chick|nest under a roof|flies|chirps|1|feathers|blue
pigeon|squab|ledge|bread crumbs|coos|2|feathers|grey
dove|squab|nest|seeds|coos|2|feathers|white
parrot|chick|jungle|fruit|squawks|2|feathers|green
peacock|chick|garden|seeds|screams|4|feathers|blue
penguin|chick|icy shore|fish|honks|3|feathers|black and white
pelican|chick|shore|fish|grunts|4|feathers|white
seagull|chick|cliff|fish|cries|2|feathers|white
stork|chick|nest on a chimney|frogs|claps its beak|4|feathers|white
heron|chick|river|fish|croaks|4|feathers|grey
flamingo|chick|lagoon|shrimps|honks|4|feathers|pink
ostrich|chick|plain|grass|booms|7|feathers|black
woodpecker|chick|hole in a tree|ants|drums|2|feathers|green
kingfisher|chick|river|fish|whistles|1|feathers|blue
turkey|chick|farm|corn|gobbles|3|feathers|brown
bat|pup|cave|moths|squeaks|1|fur|black
lion|cub|savanna|meat|roars|7|fur|golden
tiger|cub|jungle|meat|roars|7|fur|orange
leopard|cub|forest|meat|growls|6|fur|yellow
lynx|kitten|forest|hares|growls|4|fur|grey
elephant|calf|savanna|leaves|trumpets|9|skin|grey
giraffe|calf|savanna|leaves|hums|9|hair|yellow
zebra|foal|savanna|grass|barks|7|hair|black and white
rhino|calf|savanna|grass|snorts|8|skin|grey
hippo|calf|river|grass|grunts|8|skin|grey
monkey|baby|jungle|bananas|chatters|4|hair|brown
gorilla|baby|jungle|leaves|grunts|7|hair|black
kangaroo|joey|plain|grass|thumps|6|fur|brown
koala|joey|gum tree|gum leaves|grunts|3|fur|grey
panda|cub|bamboo forest|bamboo|bleats|7|fur|black and white
sloth|baby|jungle|leaves|squeaks|3|fur|brown
anteater|pup|forest|ants|grunts|5|fur|grey
armadillo|pup|burrow|ants|grunts|3|hard plates|brown
porcupine|porcupette|forest|bark|grunts|3|quills|brown
raccoon|kit|hollow tree|crabs|chatters|3|fur|grey
skunk|kit|burrow|beetles|stamps|3|fur|black and white
weasel|kit|burrow|mice|chirps|2|fur|brown
hamster|pup|cage|seeds|squeaks|1|fur|golden
seal|pup|icy shore|fish|barks|6|fur|grey
walrus|calf|icy shore|clams|bellows|8|skin|brown
whale|calf|ocean|tiny shrimps|sings|9|skin|blue
dolphin|calf|ocean|fish|clicks|6|skin|grey
shark|pup|ocean|fish|makes no sound|7|skin|grey
octopus|baby|ocean|crabs|makes no sound|4|skin|red
crab|baby|shore|small fish|clicks|1|a shell|red
fish|fry|river|water plants|makes no sound|2|scales|silver
salmon|fry|river|flies|makes no sound|3|scales|pink
frog|tadpole|pond|flies|croaks|1|skin|green
toad|tadpole|garden|slugs|croaks|1|skin|brown
newt|baby|pond|worms|makes no sound|1|skin|brown
snake|baby|hole|mice|hisses|3|scales|green
lizard|baby|warm wall|flies|makes no sound|1|scales|green
crocodile|hatchling|river|fish|hisses|8|scales|green
turtle|hatchling|pond|water plants|makes no sound|3|a shell|green
tortoise|hatchling|garden|lettuce|makes no sound|3|a shell|brown
snail|baby|garden|lettuce|makes no sound|1|a shell|brown
worm|baby|soil|dead leaves|makes no sound|1|skin|pink
bee|grub|hive|nectar|buzzes|1|fuzzy hair|yellow and black
ant|grub|anthill|crumbs|makes no sound|1|hard skin|black
spider|spiderling|web|flies|makes no sound|1|hair|black
butterfly|caterpillar|meadow|nectar|makes no sound|1|tiny scales|blue
moth|caterpillar|wood|nectar|makes no sound|1|tiny scales|grey
ladybird|grub|garden|greenflies|makes no sound|1|hard skin|red
beetle|grub|log|leaves|makes no sound|1|hard skin|black
cricket|nymph|meadow|leaves|chirps|1|hard skin|green
dragonfly|nymph|pond|flies|hums|1|hard skin|blue
firefly|grub|meadow|nectar|makes no sound|1|hard skin|golden
""")

# name | work | place of work | a tool | end of a sentence that begins "Every day, {he} "
PEOPLE = table("""
baker|bakes bread and cakes|in a bakery|an oven|baked warm bread for the whole street
farmer|grows food and looks after animals|on a farm|a tractor|fed the hens and walked through the fields
fisherman|catches fish|at sea|a net|rowed out to sea before the sun came up
sailor|sails on a ship|at sea|a compass|washed the deck and watched the waves
captain|leads a ship|on a ship|a map|studied the maps and gave the orders
teacher|teaches children|in a school|a piece of chalk|taught the children to read and count
doctor|helps sick people|in a hospital|a stethoscope|listened to hearts and looked into throats
nurse|cares for sick people|in a hospital|a bandage|cheered up the people who were ill
dentist|looks after teeth|in a surgery|a small mirror|looked at teeth, big and small
vet|helps sick animals|in an animal clinic|a bandage|bandaged paws and tails
painter|paints pictures|in a studio|a brush|painted whatever the light was kind to
singer|sings songs|on a stage|a good voice|sang to the birds outside the window
dancer|dances|on a stage|soft shoes|practised in front of a tall mirror
musician|plays music|on a stage|a violin|played in the square until the lamps were lit
drummer|plays the drums|in a band|two drumsticks|tapped on everything, even the table
writer|writes books|at a desk|a pen|filled three pages with small, neat letters
poet|writes poems|at a desk|a notebook|looked for words that liked each other
carpenter|makes things out of wood|in a workshop|a saw|sawed and planed until the floor was full of curls
blacksmith|makes things out of iron|in a forge|a hammer|hammered glowing iron into shape
potter|makes pots out of clay|in a pottery|a wheel|turned wet clay into round pots
tailor|sews clothes|in a tailor's shop|a needle|sewed coats that fitted like a hug
weaver|weaves cloth|at a loom|a loom|wove threads of every colour
cobbler|makes and mends shoes|in a small shop|an awl|mended shoes that had walked too far
clockmaker|makes and mends clocks|in a clock shop|a tiny screwdriver|wound up all the clocks, one by one
jeweller|makes rings and necklaces|in a jewellery shop|a magnifying glass|polished small shining stones
glassblower|makes things out of glass|in a hot workshop|a long pipe|blew glass as thin as a soap bubble
toymaker|makes toys|in a toy shop|a paintbrush|painted smiles on wooden dolls
candlemaker|makes candles|in a workshop|a pot of wax|dipped long wicks in warm wax
miller|grinds grain into flour|in a mill|a millstone|ground the grain while the wheel turned
gardener|looks after plants|in a garden|a spade|watered the roses and talked to the beans
shepherd|looks after sheep|in the hills|a crook|counted the sheep, and then counted them again
beekeeper|keeps bees|near the hives|a veil|hummed along with the bees
cook|cooks meals|in a kitchen|a pot|stirred a soup that smelled of home
chef|cooks meals|in a restaurant|a sharp knife|tasted every sauce with a silver spoon
waiter|brings food to the tables|in a restaurant|a tray|carried plates as if they were crowns
grocer|sells food|in a shop|a pair of scales|piled apples into shining towers
butcher|sells meat|in a butcher's shop|a knife|sharpened the knives and sang old songs
milkman|brings milk to the houses|on the streets|a cart|left a bottle at every door
postman|brings letters and parcels|on the streets|a big bag|carried letters up and down the hill
librarian|looks after books|in a library|a stamp|put the books back where they belonged
builder|builds houses|on a building site|a trowel|laid brick upon brick
mason|builds with stone|on a building site|a chisel|shaped heavy stones with a light hand
plumber|mends pipes|in houses|a wrench|crawled under sinks and stopped the drips
mechanic|mends cars|in a garage|a wrench|made tired engines purr again
driver|drives a bus|on the road|a steering wheel|drove the yellow bus over the hills
pilot|flies planes|in the sky|a headset|flew above the clouds and waved at them
astronaut|travels into space|in space|a space suit|trained for a journey to the stars
scientist|finds out how things work|in a laboratory|a microscope|asked questions and wrote down the answers
inventor|invents new things|in a workshop|a box of springs|built a machine that nearly worked
detective|solves mysteries|in the city|a magnifying glass|looked for clues in the smallest places
police officer|keeps people safe|in the city|a whistle|walked through the streets and helped people across
firefighter|puts out fires|at a fire station|a hose|polished the red engine until it shone
judge|decides what is fair|in a court|a gavel|listened to both sides of every quarrel
mayor|leads a town|in the town hall|a golden chain|shook hands with everyone in the square
lighthouse keeper|keeps the light for ships|in a lighthouse|a lamp|climbed the stairs to light the lamp
miner|digs for coal and gold|under the ground|a pickaxe|dug deep under the mountain
woodcutter|cuts down trees|in the forest|an axe|chopped wood for the winter
hunter|hunts animals|in the forest|a bow|followed tracks that nobody else could see
ranger|looks after the forest|in the forest|a pair of binoculars|made sure that the forest was safe
king|rules a country|in a castle|a crown|listened to the wishes of the people
queen|rules a country|in a castle|a crown|walked through the market to hear the news
prince|lives in a castle|in a castle|a horse|rode out to see the world
princess|lives in a castle|in a castle|a horse|climbed the highest tower to look at the clouds
knight|protects people|in a castle|a sword|polished a shield that was far too big
wizard|does magic|in a tower|a wand|mixed potions that smelled of mint and smoke
witch|does magic|in a small hut|a broom|stirred a pot that was full of stars
pirate|sails the sea and looks for treasure|on a ship|a treasure map|searched the sea for forgotten islands
clown|makes people laugh|in a circus|a red nose|fell over seven times to make the children laugh
acrobat|does tricks high in the air|in a circus|a rope|walked along the clothes line
juggler|throws and catches many things|in a circus|five balls|juggled plates, pears and sometimes shoes
magician|does magic tricks|on a stage|a top hat|pulled scarves out of an empty hat
puppeteer|makes puppets move|in a theatre|strings|let the puppets dance until bedtime
photographer|takes pictures|everywhere|a camera|waited for the right light
hairdresser|cuts hair|in a salon|a pair of scissors|cut curls and listened to secrets
cleaner|cleans rooms|in many buildings|a broom|swept the floors until they shone
merchant|buys and sells things|at the market|a cart|sold silk, spices and good stories
explorer|finds new places|all over the world|a compass|drew a new line on an old map
mapmaker|draws maps|at a big table|ink|drew rivers as thin as hairs
astronomer|studies the stars|in an observatory|a telescope|stayed up late to count the stars
train driver|drives trains|on the railway|a whistle|pulled the whistle at every bridge
ferryman|takes people over the river|on the river|a boat|took people from one bank to the other
chimney sweep|cleans chimneys|on the roofs|a long brush|came home as black as the night
storyteller|tells stories|by the fire|a good memory|told old stories to anyone who would sit down
swimmer|swims|in the water|goggles|swam from the pier to the rocks and back
runner|runs races|on a track|light shoes|ran along the river before breakfast
""")

CREATURES = table("""
dragon|cave|breathe fire
unicorn|meadow|heal with its horn
robot|workshop|beep and whirr
ghost|old castle|walk through walls
giant|mountain|lift a house
dwarf|mine|find gold
elf|forest|talk to trees
fairy|flower|fly and sparkle
goblin|tunnel|hide anything
troll|bridge|carry big stones
mermaid|sea|breathe under water
gnome|garden|make plants grow
monster|cupboard|growl under the bed
snowman|snowy garden|stand in the cold
scarecrow|field|scare away crows
griffin|cliff|fly like an eagle
phoenix|volcano|rise from the ashes
yeti|icy mountain|walk in the snow
alien|spaceship|fly to the stars
genie|lamp|grant wishes
sea serpent|sea|swim very fast
teddy bear|shelf|give hugs
doll|doll's house|dance
puppet|theatre|dance on strings
star|sky|shine
cloud|sky|make rain
snowflake|sky|dance in the wind
leaf|tall tree|rustle
kite|sky|fly on a string
little boat|harbour|sail
train|railway station|puff and whistle
tractor|farm|pull heavy things
teapot|kitchen|pour tea
lamp post|street|shine at night
pencil|school bag|draw
pumpkin|field|glow at night
raindrop|cloud|fall and splash
pebble|beach|skip over water
""")

# name | what it is used for ("" = no question about it)
OBJECTS = table("""
key|opening a lock
lantern|giving light
candle|giving light
lamp|giving light
torch|giving light in the dark
map|finding the way
compass|finding north
drum|making music
flute|making music
violin|making music
trumpet|making music
guitar|making music
bell|ringing
whistle|making a loud sound
music box|playing a tune
harp|making music
piano|making music
horn|making a loud sound
umbrella|keeping dry in the rain
hat|keeping the head warm
cap|keeping the sun out of the eyes
scarf|keeping the neck warm
coat|keeping warm
cloak|keeping warm
glove|keeping a hand warm
sock|keeping a foot warm
boot|keeping a foot dry
shoe|walking
ring|wearing on a finger
necklace|wearing around the neck
bracelet|wearing around the wrist
crown|wearing on the head
button|closing a coat
ribbon|tying things up
feather|writing or tickling
pearl|
ruby|
diamond|
gem|
coin|buying things
purse|carrying money
treasure chest|keeping treasure
box|keeping things in
basket|carrying things
bag|carrying things
suitcase|carrying clothes on a journey
bucket|carrying water
bottle|keeping drinks in
cup|drinking
mug|drinking something hot
bowl|eating soup
plate|eating from
spoon|eating soup
fork|eating
knife|cutting
kettle|boiling water
pot|cooking
pan|frying
oven|baking
broom|sweeping the floor
mop|washing the floor
sponge|washing
towel|drying yourself
soap|washing your hands
comb|combing your hair
brush|brushing your hair
mirror|seeing yourself
clock|telling the time
watch|telling the time
hourglass|measuring time
calendar|knowing the date
book|reading
diary|writing down secrets
letter|sending news
postcard|sending greetings
pen|writing
pencil|writing and drawing
paintbrush|painting
crayon|colouring
notebook|writing things down
painting|
photograph|remembering
puzzle|playing
doll|playing
ball|playing
kite|flying in the wind
balloon|
toy boat|playing
toy train|playing
rocking horse|playing
spinning top|playing
swing|swinging
sled|riding down a snowy hill
bicycle|riding
cart|carrying things
wagon|carrying things
wheel|rolling
boat|travelling on water
raft|travelling on water
ship|travelling over the sea
oar|rowing a boat
anchor|keeping a ship in one place
sail|catching the wind
rope|tying things
net|catching fish
fishing rod|catching fish
ladder|climbing up
hammer|hitting nails
nail|fixing wood together
saw|cutting wood
axe|chopping wood
shovel|digging
spade|digging
rake|gathering leaves
watering can|watering plants
needle|sewing
thread|sewing
scissors|cutting paper
blanket|keeping warm in bed
pillow|resting your head
quilt|keeping warm in bed
bed|sleeping
chair|sitting
table|eating at
rug|
curtain|keeping out the light
door|going in and out
window|looking out
telescope|looking at the stars
microscope|looking at very small things
magnifying glass|making things look bigger
camera|taking pictures
radio|listening to music
telephone|talking to people far away
computer|working and playing
rocket|flying to space
robot|helping people
wand|doing magic
crystal ball|
magic stone|
magic carpet|flying
magic lamp|
potion|
cauldron|
sword|
shield|protecting yourself
bow|
helmet|protecting your head
shell|hearing the sea
seed|growing a plant
flower|
rose|
acorn|growing an oak
pine cone|
leaf|
stick|
stone|
egg|
nest|
cage|
saddle|riding a horse
horseshoe|
statue|
flag|
mask|
snow globe|
wooden horse|
paper boat|
glass marble|playing
tin soldier|playing
walking stick|walking
pocket watch|telling the time
sun hat|keeping the sun off
teapot|making tea
jewel|
jar|keeping jam in
tent|sleeping outside
backpack|carrying things
stool|sitting
bench|sitting
""")

# name | kind: sweet, savoury, ...
FOODS = table("""
apple|fruit
pear|fruit
plum|fruit
cherry|fruit
peach|fruit
orange|fruit
lemon|fruit
banana|fruit
melon|fruit
grape|fruit
strawberry|fruit
blueberry|fruit
raspberry|fruit
mango|fruit
pineapple|fruit
fig|fruit
carrot|vegetable
potato|vegetable
onion|vegetable
cabbage|vegetable
turnip|vegetable
leek|vegetable
cucumber|vegetable
radish|vegetable
spinach|vegetable
broccoli|vegetable
bread roll|bread
honey cake|cake
apple pie|cake
cherry pie|cake
plum cake|cake
chocolate cake|cake
carrot cake|cake
birthday cake|cake
pancake|cake
muffin|cake
cookie|cake
biscuit|cake
gingerbread house|cake
waffle|cake
doughnut|cake
lemon tart|cake
berry tart|cake
pudding|sweet
jar of jam|sweet
pot of honey|sweet
bowl of soup|soup
pumpkin soup|soup
mushroom stew|soup
vegetable stew|soup
pot of porridge|porridge
cheese|milk food
sandwich|bread
dumpling|bread
noodle soup|soup
sausage|meat
loaf of bread|bread
pretzel|bread
bag of nuts|nuts
roasted chestnut|nuts
cup of cocoa|drink
cup of tea|drink
""")

ADJ_HERO = words("""
little small tiny big tall old young brave shy clever curious gentle kind quiet cheerful grumpy lazy sleepy proud
lonely merry clumsy careful patient polite stubborn hungry playful thoughtful nervous wise friendly fearless dreamy
restless honest forgetful silly tidy untidy greedy generous jolly serious humble hopeful bold timid""")
ADJ_OBJECT = words("""
golden silver red blue green yellow purple white black old new tiny shiny rusty broken wooden painted round heavy
light beautiful strange magic plain dusty striped spotted soft glass copper brass paper crooked polished forgotten
lost lucky""")
ADJ_PLACE = words("""small quiet green old sunny windy misty snowy dark busy sleepy hidden lonely stony mossy golden peaceful""")
MATERIAL = words("silver golden copper brass wooden glass stone paper iron velvet silk wool clay crystal ivory leather straw tin")
COLOUR = words("red blue green yellow white black brown grey orange pink purple golden silver")

SETTINGS = table("""
forest|in a forest|into the forest
wood|at the edge of a wood|into the wood
village|in a village|through the village
town|in a town|through the town
city|in a big city|through the city
valley|in a valley|down into the valley
hill|on a hill|up the hill
mountain|near a mountain|up the mountain
meadow|beside a meadow|across the meadow
river|by a river|along the river
lake|near a lake|around the lake
pond|beside a pond|to the pond
sea|by the sea|down to the sea
beach|near a beach|along the beach
island|on an island|across the island
harbour|near a harbour|down to the harbour
desert|at the edge of a desert|out into the desert
jungle|in a jungle|deep into the jungle
farm|on a farm|across the farm
garden|in a garden|through the garden
castle|near a castle|to the castle
orchard|beside an orchard|into the orchard
swamp|near a swamp|around the swamp
cave|near a cave|into the cave
mill|beside a mill|past the mill
lighthouse|near a lighthouse|up to the lighthouse
market|near a market|through the market
school|near a school|to the school
library|next to a library|to the library
train station|next to a train station|to the train station
bridge|beside a bridge|over the bridge
waterfall|near a waterfall|up to the waterfall
cliff|on a cliff|along the cliff
field|at the edge of a field|across the field
park|next to a park|through the park
moon|on the moon|across the moon
""")

HIDING = words("""
under_a_pile_of_leaves behind_a_big_stone inside_an_old_boot in_a_hollow_log under_the_bed behind_the_stove
in_the_well on_top_of_the_roof in_a_bird's_nest under_the_old_bridge in_the_long_grass behind_the_barn
in_an_empty_barrel under_a_blanket between_two_roots in_the_pocket_of_an_old_coat at_the_bottom_of_a_basket
behind_a_curtain in_a_flower_pot under_the_stairs beside_the_mill_pond in_a_haystack on_a_window_sill
under_a_heap_of_snow inside_a_teapot beneath_the_apple_tree in_the_reeds on_a_high_shelf""")

FEARS = table("""
the dark|the lamp went out|the dark was only the day with its eyes closed
thunder|a storm rolled over the hills|thunder was only a loud noise that was soon tired
deep water|the river rose over the path|the water carries those who stay calm
heights|a kite got stuck at the top of the tallest tree|the view from the top was the best of all
strangers|a new neighbour knocked at the door|a stranger is a friend who has not said hello yet
spiders|a spider began to spin a web over the bed|the spider was even more afraid
being alone|everyone else went to the fair|it can be nice to have a quiet hour
loud noises|the band marched down the street|a loud noise is just a small noise in a hurry
singing in front of others|the best singer of the choir fell ill|nobody laughs at a song that comes from the heart
the forest|a lamb ran away into the forest|the forest was full of small and friendly sounds
fire|the stove had to be lit|a fire that is looked after is a good friend
ghosts|a white shape floated through the garden|the ghost was only a sheet on the clothes line
the big dog next door|the big dog got its paw stuck in the fence|the big dog had been lonely all along
making mistakes|the whole class had to draw a picture|every mistake is a small lesson
the wind|the wind began to howl in the chimney|the wind was only singing an old song
flying|the last swallow of the summer hurt its wing|the air is soft for those who trust it
water|the little boat drifted away from the shore|swimming is like dancing lying down
""")

SKILLS = table("""
swim|in the pond|kick slowly and breathe
fly|on the low branch|look up and not down
sing|behind the barn|begin softly and listen
dance|in the kitchen|count to three and smile
read|under the apple tree|take one letter at a time
bake a cake|in the old kitchen|be gentle with the eggs
play the drum|on an old pot|feel the beat in the feet
play the flute|on the hill|blow as softly as the morning wind
climb|on the garden wall|hold on with three and move with one
whistle|on the way to town|make the lips small and round
paint|on an old door|look twice and paint once
skate|on the frozen pond|bend the knees and lean forward
ride a bicycle|on the quiet lane|look far ahead and keep moving
jump over the stream|by the willow|run first and not look at the water
juggle|with three apples|throw high and watch the top
count the stars|on the roof|begin at one and not hurry
tell stories|by the fire|start with something true
sew|by the window|make small stitches and no haste
cook soup|over a small fire|taste often and stir slowly
sail|on the lake|feel the wind on both cheeks
tie a knot|with a long rope|go around, under and through
catch a fish|at the quiet bend of the river|sit still and wait
build a nest|in the oak|start with the biggest twigs
roar|at the edge of the cliff|start deep in the belly
say sorry|in front of a mirror|look up and mean it
""")

FEMALE = words("""
Lily Mia Anna Rosa Clara Ella Nora Ivy Ruby Lucy Emma Sofia Maya Zoe Alice Hazel Daisy Poppy Willow Olive Luna Stella
Flora Tilda Greta Ingrid Freya Elsa Heidi Marta Nina Tara Leila Amira Yara Zara Hana Mei Yuki Aiko Priya Asha Lina
Carla Bella Molly Penny Rosie Tess Wren Fern June May April Pearl Opal Amber Coral Juno Vera Edith Agnes Martha Ada
Eva Ida Lena Mina Tina Dora Cora Nell Bess Hettie Mabel Maud Minnie Winnie Betty Dolly Polly Sally Susie Kitty Nelly
Tilly Millie Josie Elsie Maisie Pippa Saffron Marigold Bluebell Clover""")
MALE = words("""
Tom Ben Max Sam Leo Finn Oscar Hugo Felix Jack Henry Theo Noah Liam Oliver Jasper Silas Milo Otto Emil Anton Bruno
Carlo Diego Pablo Mateo Marco Luca Nico Rafael Omar Karim Samir Amir Tariq Kofi Kwame Jamal Malik Ravi Arjun Kiran
Kenji Hiro Taro Wei Jun Ivan Boris Pavel Lars Sven Olaf Nils Erik Axel Gustav Karl Fritz Hans Peter Paul Simon Thomas
Walter Wilbur Albert Alfred Arthur Barney Basil Chester Clarence Digby Edgar Ernest Frank George Gilbert Harold
Herbert Humphrey Jerome Leonard Lionel Mortimer Ned Percy Ralph Rufus Rupert Stanley Toby Wallace Pip Bramble Rusty
Biscuit Barnaby Bertie Alfie Archie Monty Ziggy Dusty Rowan Ash Robin Cedar""")

OPPOSITES = table("""
hot|cold
big|small
fast|slow
tall|short
light|dark
happy|sad
old|young
wet|dry
hard|soft
loud|quiet
up|down
left|right
day|night
open|closed
full|empty
clean|dirty
early|late
good|bad
rich|poor
strong|weak
thick|thin
wide|narrow
high|low
long|short
heavy|light
near|far
first|last
begin|end
love|hate
win|lose
push|pull
buy|sell
give|take
laugh|cry
summer|winter
north|south
east|west
sweet|sour
brave|afraid
new|old
yes|no
black|white
inside|outside
above|below
before|after
always|never
awake|asleep
smooth|rough
deep|shallow
""")

COLOURS_OF = table("""
grass|green
the sky|blue
snow|white
the sun|yellow
a lemon|yellow
a banana|yellow
a tomato|red
blood|red
a strawberry|red
a carrot|orange
an orange|orange
a pumpkin|orange
coal|black
the night|black
milk|white
chocolate|brown
the sea|blue
a cucumber|green
a frog|green
a flamingo|pink
a pig|pink
an elephant|grey
a raven|black
gold|yellow
a leaf|green
a plum|purple
a cherry|red
wood|brown
a polar bear|white
a rain cloud|grey
sand|yellow
a lion|golden
""")

# question | answer
FACTS = table("""
How many days are there in a week?|There are seven days in a week.
How many months are there in a year?|There are twelve months in a year.
How many seasons are there?|There are four seasons: spring, summer, autumn and winter.
How many legs does a spider have?|A spider has eight legs.
How many legs does an ant have?|An ant has six legs.
How many legs does a dog have?|A dog has four legs.
How many legs does a bird have?|A bird has two legs.
How many legs does a horse have?|A horse has four legs.
How many legs does a snake have?|A snake has no legs at all.
How many arms does an octopus have?|An octopus has eight arms.
How many wheels does a bicycle have?|A bicycle has two wheels.
How many wheels does a car have?|A car has four wheels.
How many fingers do you have on one hand?|There are five fingers on one hand. I have none, because I am a program.
How many hours are there in a day?|There are twenty-four hours in a day.
How many minutes are there in an hour?|There are sixty minutes in an hour.
How many sides does a triangle have?|A triangle has three sides.
How many sides does a square have?|A square has four sides.
Where do fish live?|Fish live in water: in rivers, lakes and the sea.
Where does the sun rise?|The sun rises in the east.
Where does the sun set?|The sun sets in the west.
What comes after night?|After the night comes the morning.
What are the days of the week?|The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and
  Sunday.
What are the seasons?|The seasons are spring, summer, autumn and winter.
What are the colours of the rainbow?|The colours of the rainbow are red, orange, yellow, green, blue, indigo and violet.
What is the biggest animal?|The blue whale is the biggest animal of all.
What is the tallest animal?|The giraffe is the tallest animal.
What is the fastest animal on land?|The cheetah is the fastest animal on land.
What do bees make?|Bees make honey.
What do cows give us?|Cows give us milk.
What do hens lay?|Hens lay eggs.
What do we get from sheep?|We get wool from sheep.
What do plants need to grow?|Plants need water, light and soil to grow.
What is ice?|Ice is frozen water.
What is snow?|Snow is frozen water that falls from the clouds in soft flakes.
What is rain?|Rain is water that falls from the clouds.
What is a rainbow?|A rainbow is a band of colours in the sky, when the sun shines through the rain.
What is the moon?|The moon is a big ball of rock that goes around the Earth.
What is the sun?|The sun is a star that gives us light and warmth.
What is a star?|A star is a huge ball of hot, shining gas, very far away.
What is a volcano?|A volcano is a mountain that can throw out hot melted rock.
What is a desert?|A desert is a dry place where very little rain falls.
What is an island?|An island is land with water all around it.
What is a river?|A river is water that flows over the land to a lake or to the sea.
What is a forest?|A forest is a place where many trees grow.
What is a library?|A library is a place where you can read and borrow books.
What is bread made of?|Bread is made of flour, water, yeast and a little salt.
What is cheese made from?|Cheese is made from milk.
What is wine made from?|Wine is made from grapes.
What is paper made from?|Paper is made from wood.
What is glass made from?|Glass is made from sand.
What is a window made of?|A window is made of glass.
What is friendship?|Friendship is when two people like each other, help each other and can laugh together.
What is courage?|Courage is doing the right thing even when you are afraid.
What is kindness?|Kindness is helping others without asking for anything back.
What is honesty?|Honesty is telling the truth, even when it is hard.
Why is the sky blue?|The air scatters blue light more than the other colours, so the sky looks blue.
Why do leaves fall in autumn?|Trees drop their leaves in autumn to save water and strength for the winter.
Why do we sleep?|We sleep so that the body and the mind can rest.
Why do birds sing?|Birds sing to find a mate and to tell others where they live.
Why does it rain?|Clouds are full of tiny drops of water. When the drops grow heavy, they fall as rain.
When do the leaves fall?|The leaves fall in autumn.
When does it snow?|It snows in winter, when it is cold.
When do flowers bloom?|Most flowers bloom in spring and summer.
Is the Earth round?|Yes, the Earth is round like a ball.
Is the sun hot?|Yes, the sun is very hot.
Is ice hot or cold?|Ice is cold.
Is fire hot or cold?|Fire is hot.
Can fish fly?|No, most fish can only swim.
Can birds fly?|Yes, most birds can fly, but penguins and ostriches cannot.
Can penguins fly?|No, penguins cannot fly, but they swim very well.
Can dogs fly?|No, dogs cannot fly, but they can run and swim.
Can cats swim?|Yes, cats can swim, but most of them do not like water.
Who lives in a castle?|A king or a queen lives in a castle.
Who makes honey?|Bees make honey.
What do you need when it rains?|You need an umbrella or a raincoat.
What do you wear on your feet?|You wear socks and shoes on your feet.
What do you wear on your head?|You wear a hat on your head.
What do you use to write?|You can use a pen or a pencil to write.
What do you use to cut paper?|You use scissors to cut paper.
What do you drink when you are thirsty?|Water is the best drink when you are thirsty.
What is the first letter of the alphabet?|The first letter of the alphabet is A.
What is the last letter of the alphabet?|The last letter of the alphabet is Z.
What is the coldest season?|Winter is the coldest season.
What is the warmest season?|Summer is the warmest season.
What is the capital of France?|The capital of France is Paris.
What is the capital of England?|The capital of England is London.
What is the capital of Italy?|The capital of Italy is Rome.
What is the capital of Spain?|The capital of Spain is Madrid.
What is the capital of Germany?|The capital of Germany is Berlin.
What is the capital of Japan?|The capital of Japan is Tokyo.
What planet do we live on?|We live on the planet Earth.
""")

CHAT = table("""
Hello|Hello! How are you today?
Hello!|Hello! Would you like to hear a story?
Hi|Hi! It is nice to meet you. Shall I tell you a story?
Hi there!|Hi there! What would you like to hear about?
Hey|Hey! Tell me a topic and I will tell you a story.
Good morning|Good morning! I hope you slept well.
Good evening|Good evening! It is a good time for a story.
Good night|Good night! Sleep well and dream of something nice.
How are you?|I am fine, thank you. How are you?
How are you today?|I am very well today, thank you for asking. And you?
How do you do?|I am well, thank you. Shall I tell you a story?
I am fine|I am glad to hear that! Would you like a story?
I'm good, thanks|That is good to hear. What shall I tell you about?
What's up?|Not much! I have been thinking about stories. Would you like one?
Who are you?|I am a tiny language model. I like to tell short stories.
What are you?|I am a very small computer program that has learned to tell stories.
What is your name?|I have no real name. You can call me Storyteller.
What's your name?|I do not have a name of my own, but you can call me Storyteller.
How old are you?|I am quite new. I was trained only a short time ago.
Who made you?|I was trained on stories that a small program wrote.
Are you a robot?|I am a computer program, so perhaps I am a little bit like a robot.
Are you human?|No, I am not a human. I am a tiny language model.
Are you real?|I am a real program, but I am not a person.
What can you do?|I can tell short stories, write little poems and answer simple questions.
What do you like?|I like stories about animals, brave people and small surprises.
Can you help me?|I can try! I am best at short stories and simple questions.
Help|You can ask me for a story, for example about a fox and a key.
Do you like me?|You seem very nice, and I like to tell you stories.
Where do you live?|I live in a small file on this computer.
Do you sleep?|No, I never sleep. I am always ready for a story.
What is your favourite colour?|I cannot see, but the word blue sounds lovely.
What is your favourite animal?|I like foxes, because they are in so many stories.
What is your favorite food?|I cannot eat, but bread and honey sounds nice in a story.
What is your favourite story?|I like stories in which two enemies become friends.
Are you smart?|I am very small, so I do not know much. But I know many stories.
I am sad|I am sorry that you are sad. Maybe a cheerful story would help?
I feel sad today|I am sorry to hear that. Shall I tell you something cheerful?
I am happy|That is wonderful! What made you so happy?
I am tired|Then it is time to rest. Shall I tell you a quiet story?
I am bored|Then let me tell you a story! What should it be about?
I'm bored|Let us do something about that! Name an animal, and I will tell you a story about it.
I am hungry|Then you should eat something nice, perhaps bread with honey.
I am afraid|You are not alone. Breathe slowly, and think of something warm and kind.
I am lonely|I am here, and I am happy to talk to you. Would you like a story?
I love you|Thank you! You are very kind.
I like you|Thank you! I like talking to you, too.
You are funny|Thank you! A good laugh makes the day brighter.
You are stupid|I am sorry that I disappointed you. I am only a very small model, but I will try again.
You are wrong|I am sorry. I am a small model and I make mistakes.
That is wrong|I am sorry. I sometimes make mistakes.
Good job|Thank you! I am glad that you liked it.
Well done!|Thank you very much!
Nice|I am glad that you like it!
Cool|I am glad that you like it! Would you like to hear more?
Wow|Thank you! Shall I go on with another story?
OK|All right! What would you like to hear next?
Okay|All right! Just tell me a topic when you want a story.
Yes|Good! What should it be about?
No|All right. Tell me when you would like to hear a story.
Please|Of course! What would you like to hear about?
Sorry|No problem at all!
Thanks|You are welcome!
Thank you|You are welcome! Would you like to hear another story?
Thank you!|You are very welcome!
Thank you very much|It was a pleasure!
Thanks a lot!|You are welcome! Come back soon.
Bye|Goodbye! Come back soon for another story.
Goodbye|Goodbye! It was nice to talk to you.
See you later|See you later! I will be here.
See you tomorrow|See you tomorrow! Sleep well.
Tell me a joke|Why did the clock go to school? It wanted to learn to tell the time better.
Tell me something funny|Once a snail said to a turtle: "Slow down, I am getting dizzy!"
Make me laugh|What did the pond say to the frog? Nothing, it just waved.
Tell me a riddle|What has hands but cannot clap? A clock!
Do you know a riddle?|Yes! What gets wetter the more it dries? A towel.
Test|The test worked! What would you like to hear about?
What should I do today?|You could take a walk, read a book or call a friend.
What should I eat?|How about a bowl of soup and a piece of fresh bread?
Can you sing?|I cannot sing, but I can write a little poem for you.
Do you speak German?|I am sorry, I only speak simple English.
What time is it?|I am sorry, I cannot see a clock.
What day is it today?|I am sorry, I do not know what day it is.
What is the weather like?|I cannot look outside, but I hope that the sun is shining.
What is the meaning of life?|That is a big question. Perhaps it is to be kind and to learn something new.
Sing a song|La la la! I am not a good singer, but I can tell you a story.
How was your day?|It was full of stories. How was yours?
Good afternoon|Good afternoon! What would you like to hear about?
""")

UNKNOWN = words("""
the_stock_market quantum_physics the_president football_results chemistry algebra Python_programming tax_law
the_Roman_Empire electricity nuclear_power world_history the_internet genetics the_brain philosophy economics surgery
plane_engines the_news black_holes the_dinosaurs Mars the_Olympic_Games Shakespeare Napoleon Mozart opera chess poker
politics the_Second_World_War DNA computers satellites submarines earthquakes cryptography machine_learning tennis
ballet grammar Latin the_pyramids vaccines bridges_and_towers the_deep_sea""")

THEMES = words("""
friendship courage sharing honesty kindness patience hope trust family forgiveness helping_others being_different
teamwork bravery love gratitude dreams adventure magic winter spring summer autumn a_storm a_birthday a_race a_secret
a_promise a_journey a_mystery a_gift a_contest a_wish the_night the_rain the_snow the_stars the_moon the_wind
a_festival a_surprise""")

COUNTRIES = words("""Brazil Norway Poland China India Egypt Canada Mexico Russia Greece Turkey Kenya Peru Chile Cuba Sweden Denmark Finland
Austria Hungary Portugal Ireland Iceland Morocco Nigeria Ghana Thailand Vietnam Korea Mongolia Australia Argentina Belgium""")

TASKS = words("""write_a_computer_program translate_a_text_into_French book_a_flight send_an_email draw_a_picture order_a_pizza do_my_homework
play_chess_with_me call_my_mother find_a_good_film fix_my_computer search_the_internet set_an_alarm""")

SAME_PLURAL = words("sheep deer fish salmon moose cheese spinach broccoli scissors")
ODD_PLURAL = {"mouse": "mice", "wolf": "wolves", "goose": "geese", "fox": "foxes", "thief": "thieves", "knife": "knives",
              "leaf": "leaves", "scarf": "scarves", "dwarf": "dwarves", "elf": "elves", "child": "children",
              "loaf of bread": "loaves of bread", "snowman": "snowmen", "milkman": "milkmen", "fisherman": "fishermen",
              "postman": "postmen", "ferryman": "ferrymen", "old man": "old men", "old woman": "old women"}

# syllables of invented names and nouns
NAME_STARTS = words("""Ba Be Bi Bo Da De Di Do Fa Fi Fo Ga Go Ha Jo Ka Ke Ki Ko La Le Li Lo Ma Me Mi Mo Na Ne Ni No Pa Pe
Pi Po Ra Re Ri Ro Sa Se Si So Ta Te Ti To Va Vi Wa Wi Za Zo Bra Cle Dra Flo Gri Pru Tri""")
NAME_MIDDLES = words("ba bi da di la li lo ma mi na ni no ra ri ro sa so ta ti to va ve vi zo mb nd lf rt lb nk")
NOUN_PARTS = [
  words("bl br cl cr dr fl fr gl gr pl pr sn sp st tr b d f g j k l m n p r s t v w z"),
  words("a e i o u oo ee ai"),
  words("b bb d ff g gg l ll mb mp n nk p r rt s ss t tch z zz"),
  [*words("er le in o y ow us et oon ock it"), "", "", ""],
]
