"""Story skeletons. See stories.py for how a plot is filled in.

Format, by the first characters of a line; an indented line continues the line above:
- '# name | needs | themes' opens a plot.
- '=' is its moral.
- '?' is a question about it and, after '|', the answer.
- '-' is one way to tell a stage; '--' separates stages.

In a line, [a|b] is a choice and {word} is a mark, filled in from the story. A capital is for the start of a sentence.
- h and f: hero and friend, by name or kind; n and fn: their names; k and fk: their kinds.
- he, him, his and fhe, fhim, fhis: their pronouns.
- ao: the object, 'a rusty key' at first and 'the key' later; o: its noun.
- food, into, place, hide: a food, a way into a place, the place, a hiding place.
"""

PLOTS = """
# lost | o | patience
= [Look twice before you cry|What is lost can often be found again, if you keep looking|It helps to search with a
  friend].
? What did {n} lose? | {n} lost the {o}.
? Who helped {n}? | {fn} the {fk} helped {n} to search.
- [More than anything else|Of all things in the world], {h} [loved|treasured] {ao}. It had belonged to {his}
  [grandmother|grandfather|father|mother|aunt], and {he} [carried it everywhere|looked at it every evening|never left
  home without it].
- [For {his} last birthday|On the first day of {season}], {h} had been given {ao}. {He} was so [proud|happy] that {he}
  [showed it to everyone|slept with it beside the pillow|polished it every night].
- {H} owned {ao}. It was [not worth much|old and scratched], but [nobody else had one like it|to {him} it was the best
  thing in the world].
--
- One [morning|evening|rainy day], the {o} was gone. {H} looked [under the table|in every corner|behind the door], [on
  the shelf|between the cushions|in all the pockets] and [even in the soup pot|even on the roof|even in the flower
  bed], but [it was not there|there was no {o}].
- But one [windy|cold|sunny] [morning|afternoon], {h} reached for the {o} and found nothing. "[Oh no|This cannot be
  true|Where can it be]!" {he} cried. {He} turned the whole house upside down.
- Then, on the way home {into}, {he} noticed that the {o} was missing. {His} heart [sank|beat fast|grew heavy].
--
- {fn} the {fk} [saw {his} sad face|heard the noise] and [came over|stopped]. "[What has happened|Why are you so
  sad|What are you looking for]?" {fhe} asked. "I have lost my {o}," said {h}. "[Then we will look for it
  together|Four eyes see more than two|Do not cry, I will help you]," said {f}.
- {H} went to {his} friend {fn}, a {fadj} {fk}. "When did you last see it?" asked {f}. {H} thought hard. "Yesterday,
  when I was [walking {into}|eating {food_a}|talking to a bird]." "[Then let us go back the same way|Then that is
  where we start]," said {f}.
--
- They went {into}. They asked [a sleepy owl|an old toad|three sparrows|a passing snail|the wind itself], but [nobody
  had seen it|all they got was a yawn|the answer was no]. They [crawled through the bushes|looked under every
  stone|followed a trail of tiny footprints]. [{H} was about to give up|The sun was already setting|{H} was tired and
  cold].
- First they went {into}. Nothing. Then they [climbed over a wall|crossed a stream|dug a hole]. Nothing again. "[Let
  us go home|It is no use]," said {h}. "[One more place|Never give up too soon]," said {f}.
--
- And there, {hide}, something [glittered|gleamed|caught the light]. It was the {o}! [A magpie must have carried it
  there|It must have fallen out of the bag|The wind had hidden it well].
- Then {f} [laughed|shouted]. "Look {hide}!" There lay the {o}, [safe and sound|a little dusty, but whole|as if it had
  only been asleep].
--
- {H} hugged {f} [so hard that {fhe} squeaked|and danced in a circle]. "[Thank you|How can I ever thank you]!" {he}
  said. [From then on|Since that day], {he} [tied a red ribbon to the {o}|kept the {o} in a safe place], and {f} [was
  invited to tea every Sunday|became the best friend that {he} ever had].
- {H} was so happy that {he} shared {food_a} with {f}. They sat [under the stars|by the fire|on the doorstep], with
  the {o} between them.

# found | o | honesty
= [Honesty is worth more than treasure|What is not yours should find its way home|A good deed comes back to you].
? What did {n} find? | {n} found {oa_a}.
? Who did the {o} belong to? | It belonged to {fn} the {fk}.
- One [bright|misty|quiet] [morning|afternoon], while {he} was walking {into}, {h} [stepped on something hard|saw
  something shine in the grass|tripped and fell]. It was {ao}!
- After a [long rain|stormy night], {h} went {into} to see what the [wind|water] had left behind. [There,
  {hide},|Right on the path] lay {ao}.
--
- "[How lovely|What a find|How wonderful]!" said {h}. {He} wanted to keep it. But then {he} thought, "[Somebody must
  be missing it|Somewhere, somebody is looking for this|It is not mine]."
- {H} picked it up and [turned it over and over|held it up to the light]. It was [beautiful|the nicest thing that {he}
  had ever held]. For a moment {he} wanted to hide it. "No," {he} said at last. "I must find out whose it is."
--
- {He} asked [the miller|the old goat|the postman]. "[Not mine|I have never seen it]," was the answer. {He} asked [the
  twins by the well|the crow on the fence|the woman at the market]. "[I wish it were|Sorry, no]," was the answer.
- A [greedy merchant|sly magpie] said, "[That is mine, give it to me|I will give you ten coins for it]!" But {h}
  asked, "[What does it look like on the back|Where did you lose it]?" and the [answer was wrong|stranger could not
  say].
--
- [In the evening|At last], {he} [met|heard] a {fadj} {fk} who was [crying|searching] beside the road. "[What have you
  lost|What is wrong]?" asked {h}. "My {o}," [sobbed|sighed] the {fk}. "[It was a gift from my mother|I have had it
  all my life]."
- [Near the end of the road|At the last house], a {fk} named {fn} opened the door with red eyes. When {fhe} saw the
  {o}, {fhe} [gave a cry of joy|could not speak for a moment]. "[You found it|My {o}]!" {fhe} said.
--
- {H} [gave it back|put it into {fhis} hands] at once. "[You are honest|There are not many like you]," said {fn}. "I
  cannot pay you, but [my door is always open for you|I will be your friend for life|I can teach you all the songs I
  know]." And that was [better than any {o}|worth more than gold].
- {H} handed over the {o}. {F} [smiled through the tears|laughed and cried at once] and invited {him} to [share
  {food_a}|stay for supper]. They talked until [the moon was high|the candle was only a stump], and {h} went home
  [with empty hands and a full heart|without the {o}, but with a new friend].

# quarrel | o | friendship sharing forgiveness
= [A friend is worth more than any thing|It is better to share than to be right|Saying sorry is the first step].
? Why did {n} and {fn} quarrel? | They quarrelled because both of them wanted the {o}.
? What did they quarrel about? | They quarrelled about the {o}.
- {H} and {his} friend {fn}, a {fadj} {fk}, did everything together. [They shared {food_a} and all their secrets|They
  laughed at the same jokes|If you saw one of them, the other was not far away].
- Next door lived {fn}, a {fadj} {fk}, and the two were best friends. [Every day they met at the old fence|Nobody had
  ever heard them quarrel].
--
- One day they found {ao} {hide}. "[I saw it first|It is mine]!" cried {h}. "[No, I did|No, it is mine]!" cried {fn}.
  They pulled and pulled, and [both fell into the mud|the quarrel grew louder and louder].
- Then, at the market, both of them saw {ao}. There was only one. {H} wanted it. {F} wanted it. "[You always get
  everything|You never think of me]!" shouted {f}. "[Then go away|I do not need you]!" shouted {h}.
--
- After that, they did not speak. {H} [ate alone|walked alone|sat at the window] and {f} [ate alone, too|looked the
  other way]. The days felt [long and grey|as slow as snails]. Even the {o} was no fun, because there was nobody to
  [share it with|show it to].
- For three days, {h} [stayed at home|pretended not to care]. But [the jokes were not funny any more|the {food} did
  not taste of anything|the evenings were too quiet]. [Across the way|In the other house], {f} felt just the same.
--
- Then came [a great storm|a flood|a bitter frost]. {H} heard a call for help. {F} was [stuck under a branch|trapped
  on the roof|lost in the dark]! {H} forgot the quarrel and ran [as fast as {he} could|out into the night].
- One night, {h} took a deep breath and knocked at {fhis} door. "[I am sorry|I was wrong]," {he} said. "[I miss you
  more than I want the {o}.|What is a {o} against a friend?]" {F} [began to cry|opened the door wide]. "I am sorry,
  too," {fhe} said.
--
- When they looked at each other, they [had to laugh|fell into each other's arms]. "[Let us share it|You can have it
  on Mondays and I on Tuesdays|Let us give it to someone who has nothing]," said {f}. And that is what they did.
- From then on the {o} belonged to both of them. [On even days it stayed with {h}, on odd days with {f}|It stood
  exactly in the middle between their houses]. They never quarrelled about it again.

# learn | skill | patience dreams
= [Nobody is born a master|Practice makes perfect|If you do not give up, you will get there].
? What did {n} want to learn? | {n} wanted to learn to {skill}.
? Who taught {n}? | {fn} the {fk} taught {n}.
? Where did {n} practise? | {n} practised {skillplace}.
- There was one thing that {h} wanted more than anything: {he} wanted to learn to {skill}. [All the others could do
  it|Nobody in the family had ever done it|{He} even dreamed about it at night].
- "I wish I could {skill}," {h} [sighed|said] every [day|evening]. "[You? Never|You are much too {adj} for that]!"
  [laughed the others|said the neighbours].
--
- So {he} tried it {skillplace}. The first time, {he} [fell flat on {his} nose|only made everyone laugh|did everything
  wrong]. The second time, it was [even worse|not much better]. "[I will never learn it|It is too hard]," {he} said,
  and a tear ran down {his} cheek.
- {He} went {skillplace} and tried. It went [wrong|terribly wrong]. [A frog laughed|Two crows laughed|Somebody giggled
  behind a bush]. {H} [turned red|wanted to hide], but {he} did not run away.
--
- An old {fk} named {fn} had watched {him}. "[Do you know the secret|May I tell you something]?" {fhe} asked. "You
  must {skilladvice}. And you must be patient." {H} [nodded|listened carefully].
- Then {he} met {fn}, a {fadj} {fk}. "I was bad at it, too," said {fn}. "[For a whole year|A hundred times] I failed.
  Then I learned to {skilladvice}." "[Will you teach me|Can you show me]?" asked {h}. "[With pleasure|Of course],"
  said {fn}.
--
- They met every [morning|evening] {skillplace}. [Monday was bad|The first days were hard]. [On Wednesday|After a
  week] it was a little better. {H} learned to {skilladvice}, [again and again|until {he} could do it in {his} sleep].
- Day after day {h} practised, [in sunshine and rain|even when it was cold]. [Sometimes {he} wanted to give up|Often
  {he} was tired], but {f} said, "[One more time|You are nearly there]!"
--
- And then, one [golden|clear] [morning|evening], it worked! {H} could {skill}! {F} [clapped|cheered], and [even the
  crows were silent|the ones who had laughed opened their mouths in surprise].
- On the day of the [summer|village|harvest] festival, everyone came to watch. {H} [took a deep breath|closed {his}
  eyes for a moment], and then {he} showed them how well {he} could {skill}. There was [a long silence, and then loud
  applause|so much cheering that the birds flew up].
--
- Today {he} teaches the little ones. "[It is not hard|The secret is simple]," {he} tells them. "You only have to
  {skilladvice}, and never give up."
- "Thank you, {fn}," said {h}. "[You did it yourself|I only held the lamp]," answered the old friend with a smile.

# trick | food | being_different magic
= [A clever head is stronger than big teeth|Think first, and then act|Those who want everything often get nothing].
? Who wanted to steal the {food}? | A {villain} wanted to steal it.
? How did {n} win? | {n} won with a clever trick.
- One day {h} [had just made|was carrying home] {food_a} when a {villain} jumped [out of the bushes|from behind a
  tree]. "[Give me that|That smells good, hand it over]!" [growled|snarled] the {villain}.
- {H} was looking forward to {food_a}. But a [hungry|mean|lazy] {villain} had smelled it, too. "[Give it to me|I want
  it all], or I will eat you instead!" said the {villain}.
--
- {H} was afraid, but {he} [did not show it|thought quickly]. "[Of course|With pleasure]," {he} said, "but [do you not
  want the much bigger one|did you not hear of the much better one] {hide}?" The {villain} [licked its lips|pricked up
  its ears]. "[A bigger one|A better one]?" it asked.
- {H} [bowed deeply|smiled politely]. "You may have it," {he} said, "if you can [count to a hundred with your eyes
  closed|answer my riddle|stand on one leg until I say stop]." "[Nothing is easier than that|Ha, that is easy]!" said
  the {villain}.
--
- The {villain} [ran off as fast as it could|began at once]. Meanwhile, {h} whispered to {fn} the {fk}, who was
  [sitting in a tree|hiding nearby]. Together they [tied a rope between two trees|dug a hole and covered it with
  leaves|hung a bell on a branch].
- While the {villain} [was busy|was proud of being so clever], {h} took the {food} and [slipped away on tiptoe|gave a
  sign to {fn} the {fk}]. {F} [opened the gate|held the boat ready].
--
- When the {villain} noticed the trick, it [roared with anger|turned red]. It ran after them, but [it tripped and fell
  into the mud|it ran straight into a beehive|it was far too late]. It [was never seen there again|limped home and
  never came back].
- The {villain} came back, [stumbled over the rope|fell into the hole] and [shouted for help|lay there like a beetle
  on its back]. "[Promise never to steal again|Say please]," said {h}, "and we will let you go." The {villain}
  promised.
--
- Then {h} and {f} sat down and shared the {food}. It had never tasted so good.
- {H} cut the {food} into [two|three] parts. "One for me, one for you," {he} said to {f}[.|, "and one for the
  {villain}, because it must be hungry." After that, even the {villain} became a friend.]

# storm | - | courage helping_others a_storm the_rain the_wind
= [In a storm you see who your friends are|Courage means to help although you are afraid|Together we are stronger than
  the wind].
? Who was in danger? | {fn} the {fk} was in danger.
? What was the weather like? | There was a great storm.
- One [evening|afternoon], black clouds came over the {place}. The wind [howled|whistled], the rain [beat against the
  windows|fell like stones], and [everyone ran home|all doors were shut].
- It had been a [quiet|sunny] day. But towards evening the sky turned [dark green|as black as ink]. "A storm is
  coming," said {h}. {He} [closed the shutters|brought in the washing|lit a candle].
--
- Suddenly {h} heard a faint cry. It was {fn}, the {fadj} {fk}! {FHe} was out there, [on the broken bridge|in the
  little boat|on the roof of the shed], and the water was rising.
- Then somebody knocked at the door. "[Have you seen {fn}?|{fn} has not come home!]" It was true: {fn} the {fk} was
  still out [on the hill|by the water|in the dark].
--
- {H} was only [small|one against the storm], and {he} was afraid. But {he} thought, "If I do not go, who will?" {He}
  took a rope and a lantern and ran out.
- "[Stay here|It is too dangerous]," said the others. But {h} was already outside. The wind pushed {him} back. {He}
  went on, step by step.
--
- The rain stung {his} face. Twice {he} fell. At last {he} saw {f}, [holding on to a branch|wet and shaking]. "[Catch
  the rope|Hold on to me]!" shouted {h}. {F} [caught it at the third try|held on with the last strength], and {h}
  pulled and pulled.
- The lantern went out. {H} called, and {f} answered. So {he} followed the voice through the dark, [across the
  stream|over fallen trees], until their hands touched. "[I knew that you would come|You came]!" whispered {f}.
--
- In the morning the sun shone again. The {place} was [full of branches|washed clean], but nobody was hurt. Wrapped in
  warm blankets, {h} and {f} [drank hot cocoa|ate {food_a}] and [listened to the birds|told the story again and
  again].
- When they were home at last, {he} made a fire, and they [dried their wet clothes|shared {food_a}]. "[You are the
  bravest {k} I know|You saved my life]," said {f}. "[I was so afraid|My knees were shaking]," said {h}. "That is what
  makes it brave," said {f}.

# gift | o | love gratitude kindness a_gift a_birthday
= [A gift from the heart is the best gift|It is not the price that makes a gift precious|Giving makes two people happy].
? Whose birthday was it? | It was the birthday of {fn} the {fk}.
? What did {n} give to {fn}? | {n} gave {fn} {oa_a}.
- It was nearly the birthday of {his} best friend, a {fadj} {fk} named {fn}. {H} wanted to give {fhim} something
  special. [But {he} had no money|But {his} pockets were empty].
- "Tomorrow is {fhis} birthday," thought {h}, "and I have no gift for {fn}!" {fn} was a {fadj} {fk} and the best
  friend in the world.
--
- {He} went {into} and looked in all the shops. Everything was too expensive. {H} [sat down on a step|walked home
  slowly] and thought. Then {he} had an idea. "I will make {ao}," {he} said, "[with my own hands|all by myself]!"
- {H} looked through all {his} things. There was only one thing of any beauty: {ao}. {He} loved it very much. "[But I
  love my friend more|That will make {fhim} happy]," {he} said. [All evening {he} polished it|All night {he} worked to
  make it even nicer].
--
- The work was hard. [The glue stuck to everything but the paper|The string broke twice|{He} hurt {his} finger]. [It
  was long after midnight when it was done|{He} used up three candles].
- {He} wrapped it in [green leaves|old newspaper|a blue cloth] and tied it with [grass|a piece of string|a red
  ribbon]. It looked [a little crooked|funny], and {he} was worried. "What if {fhe} does not like it?"
--
- The next day, everyone brought big, shiny gifts. {H} was ashamed and hid the little parcel [behind {his} back|under
  the table]. But {f} saw it. "[Is that for me|What have you got there]?" {fhe} asked.
- At the party there was {food_a}, and a mountain of gifts. {His} parcel was the smallest of all. {F} opened it last.
--
- {F} unwrapped the {o} and grew very quiet. "You [made this for me|gave me your favourite thing]?" {fhe} whispered.
  "It is the best gift of all." And {fhe} [never went anywhere without it|gave it the best place in the house].
- "A {o}!" cried {f}, and {fhis} eyes shone. {FHe} hugged {h} for a long time. [The other gifts were forgotten by the
  next week|The big gifts broke after a while], but the {o} stayed with {fhim} for ever.

# race | - | helping_others a_race a_contest kindness
= [There are more important things than winning|Slow and steady wins the race|A good heart wins more than a race].
? Who won the race? | {winner}
? Who did {n} race against? | {n} raced against {fn} the {fk}.
- Every [spring|summer|autumn], there was a great race {into}. The fastest of all was {fn}, a proud {fk}. "[Nobody can
  beat me|I will win again, as always]," {fhe} [boasted|said]. "[I will try|I will race you]," said {h}. Everyone
  laughed.
- "I bet that I am faster than you," said {fn}, a boastful {fk}. {H} [looked up|smiled]. "[Perhaps you are|That may
  be]," {he} said, "but let us find out. Tomorrow at sunrise, from the old oak to the bridge."
--
- For weeks, {h} practised. {He} got up [before the sun|early] and ran {into}. {F} only [slept in the shade|looked in
  the mirror].
- The night before, {h} could not sleep. "What if I come last?" {he} thought. But in the morning {he} [drank some
  water, ate an apple|tied up {his} laces] and went to the start.
--
- "Ready, steady, go!" {F} shot off like an arrow. {H} was [far behind|the last]. {He} did not look left or right.
  [Step by step|Breath by breath], {he} went on.
- The drum sounded, and off they went. At the first hill {f} was in front. At the stream {f} was still in front. {H}
  [breathed hard|felt a pain in the side], but {he} kept going.
--
- {end_race}
--
- That evening, there was [music and dancing|{food_a} for all]. {F} came over to {h}. "[You are better than I
  thought|I have learned something today]," {fhe} said and held out a hand. Since then, they run together every
  [morning|Sunday], and nobody counts who is first.
- "[Will you practise with me|Shall we run together tomorrow]?" {f} asked in the evening. {H} [was glad|nodded]. And
  so two rivals became friends.

# promise | food | trust a_promise
= [A promise is a promise|Keep your word, and people will trust you|Whoever keeps a promise is rich in friends].
? What did {n} promise? | {n} promised to bring {fn} {food_a} before sunset.
? Who was ill? | {fn} the {fk} was ill.
- {His} friend {fn}, a {fadj} {fk}, was ill and lay in bed. "I will bring you {food_a} before the sun sets," said {h}.
  "[Really|Do you promise]?" asked {f}. "I promise," said {h}.
- "I will come before dark, and I will bring {food_a}," {h} promised {fn}, an old {fk} who [lived alone|was too weak
  to walk]. {F} smiled. "Then I have something to look forward to."
--
- On the way {into}, {he} met [some friends who were playing|a band that was playing]. "[Stay with us|Play with us]!"
  they called. {H} wanted to stay. {His} feet were already [dancing|jumping]. But {he} [thought of the promise|shook
  {his} head]. "[Another time|Not today]," {he} said.
- First {he} had to make it. The flour was [empty|wet], so {he} walked to the mill. The [pot|oven] was cold, so {he}
  fetched wood. The hours [flew|ran away].
--
- Then {he} came to the river. The bridge was [gone|broken]! {H} looked at the sun. It was already [low|touching the
  hills]. {He} [tied a few logs together and floated across|walked along the bank until {he} found stepping stones],
  and held the {food} high above {his} head.
- Suddenly it began to [rain|snow]. {H} put the {food} under {his} coat. {He} [slipped|fell], got up, and slipped
  again. "[I gave my word|I promised]," {he} said through {his} teeth.
--
- Just as the last ray of sun was [fading|on the roof], {he} knocked at the door. "You came!" said {f}. "[I never
  doubted it|I knew it]." They ate the {food} together, and [{fn} felt better at once|there was colour in {fhis}
  cheeks again].
- {F} was sitting at the window. "[The sun is setting|It is late]," said the others. "[Nobody will come|{n} has
  forgotten you]." "{n} will come," said {f}. And in that very moment the door opened. There stood {h}, [wet and
  tired|out of breath], with the {food} in {his} arms.

# secret | - | friendship adventure a_secret magic
= [Some secrets are more beautiful when they are shared with one friend|The best places are found by the
  curious|Secrets grow when they are kept by two].
? What did {n} discover? | {n} discovered {secret}.
? Who did {n} tell the secret to? | {n} told only {fn} the {fk}.
- One [rainy|hot|foggy] day, {h} [leaned against an old wall|crawled under a thorny bush|followed a white feather],
  and suddenly [a stone moved|there was an opening]. Behind it {he} discovered {secret}!
- For as long as {he} could remember, there had been a locked door {hide2}. One day, the door stood open. {H} [held
  {his} breath|looked around], went in, and discovered {secret}.
--
- {H} could not believe {his} eyes. {secret_detail} "[Nobody must know about this|I must not tell anyone]," {he}
  whispered.
- {secret_detail} {H} stayed until evening and [touched nothing|walked on tiptoe]. At home, {he} [could not sleep|said
  nothing at all].
--
- But a secret is heavy for one alone. After three days, {h} told {fn}, a {fadj} {fk} who [could keep quiet|never
  gossiped]. "[Close your eyes|Follow me]," {he} said and led {fhim} there.
- {fn} the {fk} noticed that something was different. "You smile all the time," {fhe} said. "[Can you keep a secret|Do
  you promise to tell nobody]?" asked {h}. {F} nodded.
--
- Together they [cleaned away the dead leaves|repaired what was broken|brought a lantern and two cushions]. [Every
  afternoon|Every Sunday] they went there and [told each other stories|listened to the silence|ate {food_a}].
- One day, strangers came who [wanted to build a road there|wanted to sell everything]. {H} and {f} [covered the
  entrance with branches|turned the signpost around], and the strangers [went the wrong way|never found it].
--
- The place is still there, and [only two know about it|nobody else has the key]. Well, now there are three, [for you
  know it, too|because I have told you].
- When they were old, they [showed it to two children|wrote it down in a little book], because [a good secret must go
  on living|secrets should not get lost].

# build | structure | teamwork hope
= [Together you can build what one alone cannot|A good foundation matters most|Whoever asks for help gets further].
? What did {n} build? | {n} built {structure}.
? Who helped {n} to build it? | {fn} the {fk} helped {n}.
- {H} had a plan. {He} wanted to build {structure}. {He} had drawn it [on the back of a letter|in the sand|on a big
  sheet of paper], with [many arrows|little windows everywhere].
- "I will build {structure}," {h} announced one morning, "[bigger than any other|and I will do it alone]." {He}
  fetched [boards and nails|sticks and rope|stones and mud] and began.
--
- {He} [hammered|worked] all day and did not want any help. "[Can I hold something|Shall I help you]?" asked {fn}, a
  {fadj} {fk}. "No, thank you, I can do it alone," said {h}. In the evening it was finished. In the night came the
  wind, and in the morning everything [lay on the ground|had fallen down].
- The first try [fell down with a crash|leaned to the left and then to the right, and then it was flat]. The second
  try was [even worse|no better]. {H} sat down among the [boards|ruins] and [cried|kicked a bucket].
--
- {fn} the {fk} [sat down next to {him}|came by with two cups of tea]. "[A wall needs a good foundation|I am good at
  knots|I can measure and you can hammer]," {fhe} said. This time, {h} did not say no. "[Will you help me?|Please help
  me!]" {he} said.
- Then {he} went to {fn} the {fk}. It was hard to ask. "[I cannot do it alone|I need your help]," {he} said. "[I have
  been waiting for that|Gladly]," said {f}. {FHe} brought [a long rope|a strong hammer] and three cousins.
--
- Now one [held|measured] and the other [hammered|tied the knots]. They laughed a lot, and the work [went quickly|was
  half as heavy]. [After three days|On the seventh day], {structure} stood there, [straight and strong|ready and
  shining].
- They dug deep and laid big stones. They [sang|told jokes] while they worked. When the wind came again, it [blew and
  blew|pushed with all its might], but nothing [moved|fell].
--
- They celebrated with {food_a}. On the front they wrote, "Built by {n} and {fn}." [It is still standing today|You can
  still read it today].
- "[It is much nicer than in my plan|Two heads, four hands]," said {h}. "[What shall we build next|And now a second
  one]?" asked {f}.

# visitor | o | kindness trust the_night
= [Be kind to strangers|An open door brings good luck|Kindness is never lost].
? Who came to visit? | A {fk} named {fn} came to visit.
? What gift did the visitor leave? | The visitor left {oa_a}.
- One [cold|stormy|snowy] night, there was a knock at the door. {H} opened it. Outside stood a {fk} who was [wet to
  the bone|shaking with cold]. "[May I come in|I have lost my way]," said the stranger. "My name is {fn}."
- Late in the evening, when {he} was about to go to bed, {h} heard steps. A tired {fk} stood in the rain. "[All the
  other doors stayed shut|Nobody let me in]," {fhe} said. "I am {fn}, and I have come a long way."
--
- {H} had not much, only {food_a} and one blanket. But {he} said, "[Come in and get warm|What is enough for one is
  enough for two]." They shared [the meal|everything], and {h} gave the guest {his} own bed.
- At first {h} was afraid of the stranger. But the rain was [cold|heavy], and so {he} [opened the door wide|made room
  by the fire]. "[Sit down|You are welcome here]," {he} said and put {food_a} on the table.
--
- {F} told stories of [far countries|ships and deserts|cities made of glass]. {H} listened with [big eyes|an open
  mouth]. It was [midnight|nearly morning] when they fell asleep.
- They hardly spoke. But {f} [hummed an old tune|drew a map on the table with one finger], and the room felt [warmer
  than before|bigger than before].
--
- In the morning, the guest was gone. The bed was made, and on the pillow lay {ao}. Beside it was a note: "[For the
  one who opened the door|Thank you for your warm heart]."
- At sunrise, {f} said goodbye. "[I have no money|I cannot pay you]," {fhe} said, "but take this." It was {ao}. "[It
  brings luck to those who are kind|Whenever you look at it, you will know that you have a friend]."
--
- Since that night, {h} has [never felt alone|had good luck]. The {o} [stands on the window sill|hangs above the
  door], and the door is never locked.
- Years later, {he} [got lost in a strange town|was far from home]. It was raining. {He} knocked at a door, and who
  opened it? It was {fn}. "[Come in and get warm|I have been expecting you]," {fhe} said.

# fear | fear | courage bravery being_different
= [Courage is to be afraid and to go on|Most fears grow small when you look at them|You are braver than you think].
? What was {n} afraid of? | {n} was afraid of {fear}.
? Who did {n} help? | {n} helped {fn} the {fk}.
- {H} had a secret. {He} was afraid of {fear}. [A {k} who is afraid of {fear}? It sounded silly|The others must never
  know it]! {He} always found an excuse: [a sore foot|a cold|a book that had to be finished].
- Everyone thought that {h} was not afraid of anything. But {he} was afraid of {fear}. {His} knees shook as soon as
  {he} [thought of it|heard about it].
--
- Only {fn}, a {fadj} {fk}, knew about it. "[Everybody is afraid of something|I am afraid of soup spoons]," said {f}.
  "[You do not have to be ashamed|One day you will see that it is not so bad]."
- "[Scaredy {k}|Look at that]!" the others shouted when they found out. Only {fn}, a {fadj} {fk}, did not laugh. {FHe}
  [sat down beside {him}|took {his} side] and said, "[I will stay with you|I was like you once]."
--
- Then, one [evening|day], {fevent}. And {f} was in trouble! [Nobody else was near|There was no time to get help]. {H}
  [swallowed|closed {his} eyes]. {His} heart was beating like a drum.
- And then it happened: {fevent}. Everyone looked around. "[Who will go|Who can help]?" asked {f}. It was very quiet.
  "I will," said {h} in a very small voice.
--
- "[One step|Just one step]," {he} told {himself}. Then another. {His} legs shook, but they carried {him}. {He}
  [hummed a song|counted to ten|thought of {f}], and slowly the fear grew smaller.
- {He} took a deep breath and [went|stepped forward]. It was terrible for a moment, and then it was only [half as
  terrible|a little terrible]. "[I am doing it|Look at me]!" {he} thought.
--
- And then {he} noticed something: {flesson}. {H} [began to laugh|had to smile]. {F} was safe, and [the others
  cheered|the two of them went home arm in arm].
- When it was over, {f} hugged {him}. "You did it!" {fhe} said. {H} had learned something that day: {flesson}.
--
- {He} is still a little afraid of {fear}, [but only on Mondays|but {he} goes anyway].
- Now, when the little ones are afraid, {h} says, "[Give me your hand|Come, we will go together]."

# quest | o | adventure a_journey courage hope
= [Whoever helps others on the way will be helped|The way is long, but every step counts|Even the smallest can save a
  village].
? What was {n} looking for? | {n} was looking for {oa_a}.
? Where did {n} find the {o}? | {n} found it {hide}.
- [Trouble had come to the {place}|Everyone in the {place} was worried]. The [well was dry|crops did not grow|big
  clock stood still|winter would not end]. "Only {ao} can help us," said the oldest of all. "But it is far away." "I
  will fetch it," said {h}.
- In an old book, {h} read about {ao} that could [make any wish of the heart come true|heal the sick|bring back the
  spring]. {His} friend {fn}, a {fadj} {fk}, was [very ill|losing hope]. So {h} [packed {food_a}|put on a warm coat]
  and set out.
--
- {He} walked {into}, and then on for three days. On the first day, {he} met {an_odd} who was [hungry|stuck in the
  mud]. {H} [shared {his} bread|pulled with all {his} strength]. "[I will not forget it|Thank you, I owe you
  something]," said the stranger.
- The way led {into}. {H} slept under the stars and [drank from cold streams|ate wild berries]. On the second day {he}
  met {an_odd}. "[Turn back|Nobody has ever come back]!" it said. But {he} [went on|shook {his} head and smiled].
--
- Then a [giant|stone lion|troll] stood in the way. "Answer my riddle," it said. "{riddle}" {H} thought for a long
  time. "{solution}!" {he} said at last. "You may pass," said the guard.
- At last {he} came to a [deep gorge|wide river|wall of thorns]. {He} did not know how to go on. Suddenly, [a flock of
  birds lifted {him} up|the stranger from the road was there and showed {him} a secret path]. Kindness had been faster
  than fear.
--
- And there, {hide}, {he} found the {o}. It was [much smaller than {he} had thought|covered with dust], but when {he}
  touched it, it [began to glow|was warm].
- On the other side, {hide}, was the {o}. {H} took it carefully and [ran|walked] home, day and night.
--
- When {he} came home, [the bells rang|everyone ran to meet {him}]. {H} held up the {o}, and [water bubbled up from
  the ground|the first flowers opened|all was well again]. {fn} the {fk} [danced for joy|wept with joy].
- The {o} did what the old ones had promised. There was a feast with {food_a}, and {fn} the {fk} [made a song about
  it|said a speech]. But {h} had already fallen asleep in the grass, [with a smile|tired and happy].

# honesty | o | honesty forgiveness trust
= [The truth may hurt for a moment, but a lie hurts for a long time|Honesty makes the heart light|It is never too late
  to tell the truth].
? What did {n} break? | {n} broke the {o}.
? Whose {o} was it? | It was the {o} of {fn} the {fk}.
- {His} neighbour {fn}, a {fadj} {fk}, owned {ao}. It was {fhis} pride and joy. "[You may look at it, but please do
  not touch it|Please be careful with it]," said {fn} and went out.
- One day {h} was allowed to borrow {ao} from {fn}, a {fadj} {fk}. "[Look after it|Take good care of it]," said {fn}.
  "[I will|Of course]," said {h}.
--
- {H} only wanted to [hold it for a moment|show it to the sun]. But it slipped, fell, and broke. [Crack|Crash]! {H}
  stood there and [could not breathe|turned pale].
- For a while everything went well. Then {he} [tripped over a root|turned around too quickly], and [crash|crack], the
  {o} lay broken on the ground.
--
- {He} hid the pieces {hide}. When {f} asked, {h} said, "[The wind did it|I do not know|It must have been the cat]."
  {F} [nodded sadly|said nothing]. But the lie sat in {his} stomach like a stone.
- "[Nobody saw it|I could say that I lost it]," {he} thought. {He} put the pieces in a bag and went home. But {he}
  could not [eat|sleep], not even {food_a} tasted good.
--
- The next [morning|day], {he} could not stand it any longer. {He} went to {f}. "I have to tell you something," {he}
  said, and {his} voice [shook|was very small]. "I broke your {o}, and then I lied. I am so sorry."
- In the middle of the night {he} got up, took the pieces and knocked at {fhis} door. "[It was me|I did it]," {he}
  said and began to cry.
--
- {F} was silent for a while. Then {fhe} said, "[I am sad about the {o}|A {o} can be mended], but I am glad that you
  told me the truth." Together they [glued the pieces|mended it]. [You can still see the cracks|It has a scar now],
  and they both like it even more.
- "I knew it," said {f}. "[I was waiting for you to tell me|I found a piece in the grass]." {H} worked in {fhis}
  garden all week to make up for it, and at the end {f} [laughed and said|said], "[Now we are even|Now let us be
  friends again]."

# share | food | sharing kindness gratitude
= [Those who share have more|What you give comes back to you|Shared food tastes twice as good].
? What did {n} share? | {n} shared {food_a}.
? Who was hungry? | {fn} the {fk} was hungry.
- It was a [hard|long] winter, and there was little to eat. {H} had only {food_a} left. "[I will eat it slowly|This
  must last until spring]," {he} said.
- After a long day, {h} sat down to eat {food_a}. {He} had looked forward to it [all day|for hours]. {He} was just
  about to take the first bite.
--
- Then {he} saw a {fk} [at the window|at the side of the road]. It was {fn}, [thin and tired|with hungry eyes]. {F}
  did not ask for anything. {FHe} only looked.
- There was a small sound behind {him}. A {fadj} {fk} stood there. "I am {fn}," {fhe} said. "[That smells wonderful|I
  have not eaten for two days]."
--
- {H} looked at the {food}, and {he} looked at {f}. {His} own stomach [rumbled|growled]. Then {he} [sighed and broke
  it in two|cut it into two halves]. "[Come and eat|Here, this is for you]," {he} said.
- "[Mine|It is hardly enough for me]," {he} thought first. But then {he} [felt ashamed|remembered how it is to be
  hungry]. "[Sit down|There is room for two]," {he} said and moved over.
--
- They ate [slowly|in silence], and it was strange: half of it [filled {him} more than the whole would have|tasted
  better than all of it]. "[I will never forget this|Thank you]," said {f} and went off {into}.
- While they ate, they told each other [where they came from|about warmer days]. In the end they were both still a
  little hungry, but nobody was [lonely|sad] any more.
--
- Months later, {h} [fell ill|lost all {he} had in a flood]. Nobody came. Then somebody knocked. It was {fn}, with a
  basket full of {food_pl}. "[You shared with me when you had nothing|Now it is my turn]," {fhe} said.
- In spring, there was [a big basket|a full sack] at {his} door. In it was {food_a}, and another one, and [another|a
  whole heap more]. On a small card was written, "From {fn}, for half a meal."

# wish | o | a_wish magic dreams gratitude
= [Be careful what you wish for|You are good just as you are|What you have is often better than what you want].
? What did {n} wish for? | {n} wished {wishq}.
? What was magic? | The {o} was magic.
- [One evening|One day] {h} found {ao} {hide}. When {he} [rubbed|cleaned] it, a voice said, "[You have one wish|I can
  grant you one wish]. Think well!"
- An old woman gave {him} {ao} because {he} had [carried her bag|helped her over the road]. "It is magic," she said.
  "[It grants one wish|Make a wish and turn around three times]."
--
- "I wish {wish}!" said {h} without thinking. There was a [flash|bang|puff of smoke], and [it had come true|the wish
  was granted].
- {H} thought for a whole day. Then {he} said, "I wish {wish}!" The {o} [grew warm|shone], and it happened at once.
--
- {wish_bad} {fn} the {fk} came by and [stared|did not even recognise {him}]. "[What have you done|Are you happy
  now]?" {fhe} asked.
- At first it was [wonderful|great fun]. But soon {he} saw the other side of it. {wish_bad} "[This is not what I
  wanted|I want everything to be as it was]," {he} told {fn} the {fk}.
--
- "[Please, I want to be myself again|Please undo my wish]!" {h} begged the {o}. Nothing happened. Then {f} said,
  "[Let me try|I have not wished for anything yet]." {FHe} took the {o} and gave away {fhis} own wish, just to help
  {h}.
- {H} [sat down and cried|ran back to where it had begun]. One tear fell on the {o}. "[Have you learned something|So
  you are wiser now]?" asked the voice. "Yes," said {h}. And everything was as before.
--
- {H} looked at {himself} in the [pond|window] and was glad. {He} put the {o} {hide}, where it still lies today. [If
  you find it, think well|So be careful if you find it].
- After that, {he} gave the {o} to [the river|a wise old owl]. "[I have all I need|I have a friend, and that is
  enough]," {he} said and took {f} by the arm.

# astray | - | hope the_stars the_moon the_night the_snow family
= [Even in the dark there is a light somewhere|Do not be ashamed to ask the way|A friend is a light in the dark].
? Where did {n} get lost? | {n} got lost in the {wild}.
? Who showed {n} the way home? | {fn} the {fk} showed {n} the way home.
- [One day {h} followed a blue butterfly|{H} only wanted to pick some berries|{H} wanted to take a short cut]. {He}
  went deeper and deeper into the {wild}. When {he} looked around, [everything looked the same|the path was gone].
- "[Do not go too far|Be home before dark]," {his} mother had said. But the {wild} was so [interesting|green and
  quiet] that {h} forgot the time. Suddenly it was [evening|dark].
--
- {He} went left and came to a [swamp|wall of rock]. {He} went right and came back to [the same tree|{his} own
  footprints]. "Hello?" {he} called. Only the echo answered: "Hello, hello."
- The shadows grew long. [An owl hooted|Something rustled in the leaves]. {H} [sat down on a stump|hugged {his} knees]
  and tried not to cry. "[Think|Stay calm]," {he} told {himself}.
--
- Then {he} saw a small light. It came nearer. It was a {fadj} {fk} with a [lantern|glowing mushroom|candle in a jar].
  "I am {fn}," {fhe} said. "[Are you lost|What are you doing here so late]?" {H} nodded.
- "[Who is crying there?|You are sitting on my roof!]" said a voice. It was {fn}, a {fk} who [lived right there|was on
  the way home]. "[I have lost my way|I want to go home]," said {h}.
--
- "[Look up|Do you see that star]," said {f}. "It always stands in the north. Your home is [right under it|on the
  other side]." They walked together, and {f} [told stories|sang] so that the way was not so long.
- {F} knew every [tree|stone]. {FHe} led {him} [over a fallen log|along a stream], through the [fern|mist], and up a
  hill. "[There|Look down there]!" {fhe} said. Far below shone the lights of home.
--
- At home {he} was hugged [from all sides|for a long time]. "[Will you stay for supper?|Please come in!]" {h} said to
  {f}. And so there was {food_a} for everyone.
- Since then, {h} always [looks at the stars|leaves a lamp in the window], in case someone else is lost. And every
  [full moon|Saturday], {he} visits {f} in the {wild}.

# contest | food | a_contest teamwork a_festival hope
= [It is the taste that counts, not the looks|A mistake can be the beginning of something good|Do it with love, and it
  will be good].
? What did {n} make? | {n} made {food_a}.
? Who won the contest? | {n} won the contest.
- Once a year there was a cooking contest in the {place}. {H} wanted to take part with {food_a}. But {fn}, a {fadj}
  {fk}, had won [seven times in a row|every year so far].
- A [poster|sign] hung on the old wall: "Great cooking contest on Sunday! Who makes the best {food}?" {H} read it
  [three times|with a beating heart]. "[I will try it|Why not me]?" {he} said to {fn} the {fk}.
--
- {He} practised every evening. The first one was [burnt|as hard as stone]. The second one was [too salty|too sweet].
  The third one [ran off the plate|was eaten by the birds], at least they liked it.
- {H} had {his} grandmother's recipe. "[The most important thing is missing|There is a stain on the last line]," {he}
  said. So {he} had to guess.
--
- On the great day, everything went wrong. {H} [dropped the salt|mixed up sugar and salt|spilled the milk]. There was
  no time to begin again. [Then {he} saw a bunch of mint by the window|Then {f} passed {him} a little pot of honey].
  "[Try that|That might help]," said {f}.
- In the middle of the contest, {his} fire went out. {F} [looked over|hesitated for a moment]. Then {fhe} [brought a
  shovel of glowing coals|moved over and shared the stove]. "[It must be fair|I want to win against you, not against
  bad luck]," {fhe} said.
--
- The judges tasted. They [closed their eyes|looked at each other]. They tasted again. "[What is in it|We have never
  tasted anything like this]!" they said. And the first prize went to {h}.
- There was a long silence. Then the oldest judge [licked the plate clean|asked for more]. "[This one|Here is our
  winner]!" And she pointed at {h}.
--
- {H} [cut the prize in two|shared the prize] with {f}. "[Without you it would not have worked|Half of it is yours],"
  {he} said. Next year they will cook together.
- "[What is your secret|How did you do it]?" everyone asked. {H} [laughed|winked at {f}]. "[A mistake and a good
  friend|A bit of luck]," {he} said.

# mystery | food | a_mystery a_surprise family
= [Things are often not as they seem|Look closely before you blame someone|Curiosity and kindness solve most riddles].
? What was missing? | The {food} was missing.
? Who was the thief? | It was {fn} the {fk}, who was only hungry.
- Something strange was going on. Every night, {food_a} [disappeared from the kitchen|was missing]. [The door was
  locked|The windows were closed]. "[Who can it be|This is a mystery]," said {h}.
- {H} had put {food_a} on the table. In the morning, the plate was empty. "Was it you?" {he} asked the
  [cat|neighbours]. But [the cat had been asleep|nobody knew anything].
--
- {He} [put flour on the floor|tied a small bell to the plate] and waited behind the curtain. [One hour passed|The
  clock struck eleven]. [Nothing happened|It was as quiet as in a hat]. Then, at midnight, something
  [rustled|squeaked].
- {H} looked for clues. There was [a hair on the chair|a tiny footprint], a few crumbs, and [a wet spot by the
  window|a scratch on the door]. {He} wrote everything down in a notebook. "[Small feet, big hunger|A small thief],"
  {he} noted.
--
- {He} lit the lamp. There sat a small, {fadj} {fk} with [crumbs around the mouth|big eyes]. "[Please do not be
  angry|I am sorry]," {fhe} [whispered|said]. "My name is {fn}. I was so hungry."
- The trail led {into} and ended {hide}. There sat {fn}, a {fadj} {fk}, with [three little ones|two hungry brothers].
  In front of them lay the rest of the {food}.
--
- {H} had wanted to shout. Now {he} [could not|put down the broom]. "[Why did you not ask?|You could have knocked at
  the door.]" {he} said. "[I was too shy|I did not dare to]," said {fn}.
- "So you are the thief," said {h}. {fn} [hung {fhis} head|blushed]. "[Nobody gives me anything|I did not know what
  else to do]," {fhe} said.
--
- From then on, there was a second plate on the table. The mystery was solved, and {h} had [a new friend|someone to
  have breakfast with].
- "[Then stay for breakfast|Tomorrow you will come by the front door]," said {h}. And since then {he} always makes
  twice as much.

# plant | - | patience hope spring dreams
= [Good things take time|Patience makes the flowers grow|What you care for will grow].
? What did {n} plant? | {n} planted {seed}.
? Who was impatient? | {fn} the {fk} was impatient.
- {H} had [found|been given] {seed}. {He} [dug a small hole|made a bed of soft earth], put it in and gave it some
  water. "[Now grow|Good night, little one]," {he} said.
- "What is that?" asked {fn}, a {fadj} {fk}. "It is {seed}," said {h}. "[I am going to plant it|One day something
  wonderful will grow out of it]." "[It looks like nothing|It is far too small]," said {fn}.
--
- The next day, nothing had happened. A week went by, and nothing happened. "[It is dead|You are wasting your time],"
  said {fn} the {fk}. "[Dig it up|Throw it away]." "[Wait|It only needs time]," said {h}.
- Every day {h} [carried water from the well|pulled out the weeds]. {fn} the {fk} [shook {fhis} head|laughed]. "[I
  would have given up long ago|Is it still not there]?" {fhe} asked.
--
- Then came [a dry summer|a late frost]. {H} [shared {his} own water with it|covered the place with {his} scarf]. {He}
  [sang to it|told it stories]. Sometimes {he} was [sad|full of doubt], but {he} did not stop.
- [Rain came|The snow came and went]. {H} waited. "[Perhaps tomorrow|It is working under the ground]," {he} said every
  evening.
--
- And one [morning|day in spring], there was a tiny green tip. {H} [held {his} breath|shouted for joy]. It grew, first
  as [tall as a thumb|long as a finger], then up to {his} knee, and then {seed_end}.
- "[Come quickly|Look]!" {h} called. {F} [came running|rubbed {fhis} eyes]. Out of the earth came something green.
  Week by week it grew, until {seed_end}.
--
- "[I was wrong|I will never laugh again]," said {f}. "[Can I plant one, too|Will you show me how]?" {H} [gave {fhim}
  three seeds|smiled and handed {fhim} the spade].
- In its shade {h} and {f} still sit today and eat {food_a}. "[It was worth the wait|Good that you did not dig it
  up]," says {f}.

# lazy | - | teamwork winter autumn helping_others
= [First the work, and then the rest|Everyone can do something for others|Music is work, too].
? Who was lazy? | {fn} the {fk} did not work.
? What did {n} do all summer? | {n} worked and gathered food for the winter.
- All summer long, {h} [gathered wood and food|worked from morning to night]. {His} neighbour {fn}, a {fk}, [lay in
  the grass|played the fiddle] all day. "[Winter is far away|Why do you work so hard]?" {fhe} asked.
- "[Come and help me|The days are getting shorter]," said {h} to {fn}, a lazy {fk}. "[Tomorrow|Maybe next week],"
  [yawned|said] {fn} and turned over in the hammock.
--
- Autumn came, the leaves [fell|turned red]. {H} [filled the cellar|closed up all the cracks]. {F} [watched the
  clouds|made up a new song].
- One by one, the birds left. "[Now it is getting serious|You should hurry]," {h} warned. But {f} only [laughed|hummed].
--
- Then, overnight, came the snow. {F} had [no wood|nothing to eat]. {FHe} [shivered|was ashamed], and at last {fhe}
  knocked at {his} door.
- The first frost was hard. {His} house was warm, but from next door there came no smoke. {H} [was worried|looked out
  of the window]. {F} sat there, wrapped in [three thin blankets|an old curtain].
--
- "[I told you so|You could have worked, too]," {h} wanted to say. But {he} said, "[Come in|There is enough soup for
  two]." {F} [cried|was silent], and then {fhe} began to play and sing. The dark evenings were suddenly
  [bright|short].
- {H} let {fhim} in. "[What can I do for you|How can I thank you]?" asked {f}. "[Tell me a story|Play for me]," said
  {h}. And {f} [told|played] so well that all the neighbours came to listen.
--
- In spring, {f} was the first to [get up|take a spade]. "[You work in the morning, and I sing in the evening|This
  year we will do it together]," {fhe} said. And so they did.
- That winter {h} learned that [songs warm you like wood|one does not live by work alone], and {f} learned that [songs
  do not fill a cellar|one must think of tomorrow].

# moving | - | friendship being_different trust a_surprise
= [A new friend may be waiting next door|Do not judge anyone before you know them|Being different is not being bad].
? Who was new? | {fn} the {fk} was new.
? Why was {n} suspicious? | {n} was suspicious because {fn} was different.
- One day, somebody new moved in: a {fk} named {fn}. "A {fk}!" [whispered|said] everyone in the {place}. "[They are
  dangerous|They are strange]." {H} [locked the door|watched from behind the curtain].
- {fn} the {fk} was new in the {place}. {FHe} [looked different|spoke with a funny voice], and [nobody sat next to
  {fhim}|everyone made a big circle around {fhim}]. Neither did {h}.
--
- The newcomer [waved|said hello]. {H} looked away. The next day {f} [waved again|left {food_a} at the door]. "[That
  must be a trick!|What does that mean?]" thought {h}.
- {F} always [sat alone|walked alone] and [talked to the flowers|drew pictures in the sand]. Sometimes {h} felt a
  little sorry. But {he} [did not dare to go over|did not want to be laughed at].
--
- Then {h} [fell into a ditch|got stuck in the fence|hurt {his} leg]. {He} called, but {his} friends [had already gone
  home|did not hear {him}]. Only {f} came. "[Hold still|I have got you]," {fhe} said and [pulled {him} out|freed {him}
  gently].
- One evening, the ball flew right into the garden of the newcomer. {H} had to fetch it. With a beating heart, {he}
  opened the gate. {F} [held out the ball|was sitting there]. "[Do you want to see something|I have been waiting for
  someone to play with]," {fhe} said.
--
- "[Why did you help me|I was not kind to you]," said {h}. {F} [shrugged|smiled]. "[You were in trouble|Somebody has
  to begin]," {fhe} said.
- They [talked|played] until dark. {F} knew [the names of all the stars|a hundred games|how to whistle with a blade of
  grass]. And {h} had thought that {fhe} was dangerous!
--
- The next day {h} [took {fhim} by the hand|went through the {place} with {fhim}]. "This is {fn}," {he} told everyone.
  "[{FHe} is my friend|And {fhe} tells the best jokes]." Soon nobody [whispered|was afraid] any more.
- Now the two are [always together|the best of friends]. And whenever somebody new comes to the {place}, {h} is the
  first to [say hello|bring {food_a}].
"""
