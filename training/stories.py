"""Seeded generator of the default model's training text: chats with short stories, small poems and simple questions.

It uses only the standard library and the tables beside this file. The same seed gives the same text on every machine.
Preview: python training/stories.py --seed 1 --count 5
"""
import argparse
import random
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import facts
import phrases as p
import words as w
from plots import PLOTS

Turn = dict[str, str]
Value = str | Callable[[], str]
STYLES = 16
MASS = {"cheese", "spinach", "broccoli"}
COOKED = {"cake", "soup", "bread", "porridge", "sweet"}
FEMALE_KINDS = {"princess", "queen", "witch", "mermaid", "hen", "cow", "doll", "fairy", "girl", "little girl",
                "old woman", "grandmother", "ladybird"}
MALE_KINDS = {"king", "prince", "wizard", "rooster", "bull", "milkman", "fisherman", "postman", "snowman", "boy",
              "little boy", "old man", "grandfather", "peacock"}
HUMANS = ["girl", "boy", "little girl", "little boy", "old woman", "old man", "grandmother", "grandfather"]
VILLAINS = w.words("wolf troll goblin crow rat weasel ogre giant pirate thief robber hyena vulture crocodile bear")
ODD = w.words("""an_old_woman a_blind_beetle a_talking_fish a_limping_raven a_tiny_man a_ragged_dog a_sad_giant
a_lame_horse""")
WILD = w.words("forest jungle wood swamp valley desert")
NOOKS = w.words("""at_the_end_of_the_garden in_the_cellar behind_the_mill under_the_stairs in_the_castle_wall
at_the_top_of_the_tower""")
TOWNS = {"forest", "village", "town", "city", "valley", "jungle", "harbour", "swamp", "desert"}
OBJECT_PLOTS = {"lost": ["lost"], "forgotten": ["lost", "found"], "broken": ["honesty"], "magic": ["wish", "quest"]}
VERB_PLOTS = [("finds", ["found"]), ("loses", ["lost"]), ("breaks", ["honesty"]), ("is looking for", ["quest", "lost"]),
              ("has", ["lost", "quarrel", "gift"])]
SEASONS = ["spring", "summer", "autumn", "winter"]
STRUCTURES = w.words("""a_tree_house a_boat a_bridge a_raft a_tower a_windmill a_snow_castle a_hut a_flying_machine a_rocket a_stage
a_bird_house a_stone_wall a_water_wheel a_sand_castle a_cabin a_lighthouse a_playground a_slide a_small_theatre
a_kite_as_big_as_a_house""")





@dataclass(frozen=True)
class Plot:
  """A skeleton: what it needs ('o': an object), its themes, stages (each a list of wordings), moral and questions."""
  name: str
  needs: set[str]
  themes: set[str]
  stages: list[list[str]]
  moral: str
  questions: list[list[str]]


@dataclass
class Ask:
  """The parts of a story that a request fixes; the rest is drawn. `text`: the request's words for them."""
  text: str = ""
  hero: str = ""
  adj: str = ""
  name: str = ""
  friend: str = ""
  obj: str = ""
  obj_adj: str = ""
  food: str = ""
  setting: str = ""
  theme: str = ""
  fear: str = ""
  skill: str = ""
  plots: list[str] = field(default_factory=list)
  mention: str = ""
  female: bool | None = None
  extra: dict[str, str] = field(default_factory=dict)


def read_plots(text: str) -> dict[str, Plot]:
  """Parses the plot format that plots.py describes."""
  plots = {}
  text = text.replace("\n  ", " ")
  for chunk in re.split(r"^# ", text, flags=re.M)[1:]:
    lines = chunk.strip().splitlines()
    name, needs, themes = (f.strip() for f in lines[0].split("|"))
    stages: list[list[str]] = [[]]
    moral, questions = "", []
    for line in lines[1:]:
      if line == "--":
        stages.append([])
      elif line.startswith("- "):
        stages[-1].append(line[2:])
      elif line.startswith("= "):
        moral = line[2:]
      elif line.startswith("? "):
        questions.append([p.strip() for p in line[2:].split("|")])
    themes_set = {t.replace("_", " ") for t in themes.split()}
    plots[name] = Plot(name, set(needs.replace("-", "").split()), themes_set, stages, moral, questions)
  return plots


ALL_PLOTS = read_plots(PLOTS)


def stable(text: str) -> int:
  """A hash that is the same in every run."""
  return zlib.crc32(text.encode())


def polish(text: str) -> str:
  """a -> an before a vowel, capitals at sentence starts, no double spaces."""
  text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU]|honest|hour)(?!(?:uni|use|usu|one\b|once|euro|ewe))", r"\1n ", text)
  text = re.sub(r"(^|[.?!:] |[.] \")([a-z])", lambda m: m[1] + m[2].upper() if m[1] != ": " else m[0], text)
  text = re.sub(r"([.?!]\") ([a-z])", lambda m: m[0] if m[1][0] != "." else f"{m[1]} {m[2].upper()}", text)
  return re.sub(r"  +", " ", text).strip()


def expand(rng: random.Random, text: str, env: dict[str, Value], style: int = -1) -> str:
  """Draws every [a|b] (a style leans towards its own choices) and fills in every {word}."""
  def choose(m: re.Match[str]) -> str:
    parts = m[1].split("|")
    if style >= 0 and rng.random() < 0.5:
      return parts[stable(f"{style}:{m[1]}") % len(parts)]
    return rng.choice(parts)

  def fill(m: re.Match[str]) -> str:
    value = env[m[1]]
    return value if isinstance(value, str) else value()

  while "[" in text:
    text = re.sub(r"\[([^\[\]]*)\]", choose, text)
  for _ in range(3):
    text = re.sub(r"\{(\w+)\}", fill, text)
  return text


def article(noun: str) -> str:
  return ("some " if noun in MASS else "a ") + noun


def plural(noun: str) -> str:
  if noun in w.SAME_PLURAL:
    return noun
  if noun in w.ODD_PLURAL:
    return w.ODD_PLURAL[noun]
  if " of " in noun:
    head, rest = noun.split(" of ", 1)
    return plural(head) + " of " + rest
  if re.search(r"(s|x|ch|sh|potato)$", noun):
    return noun + "es"
  return noun[:-1] + "ies" if re.search(r"[^aeiou]y$", noun) else noun + "s"


def invent_name(rng: random.Random, female: bool) -> str:
  ends = ["a", "ia", "ina", "elle", "ie", "ette"] if female else ["o", "us", "in", "ert", "old", "ick"]
  return rng.choice(w.NAME_STARTS) + rng.choice(w.NAME_MIDDLES) + rng.choice(ends)


def invent_noun(rng: random.Random) -> str:
  """An invented word, so that the model learns to copy a topic from the request."""
  return "".join(rng.choice(part) for part in w.NOUN_PARTS)


def pick_hero(rng: random.Random) -> str:
  r = rng.random()
  if r < 0.45:
    return rng.choice(w.ANIMALS)[0]
  if r < 0.78:
    return rng.choice(w.PEOPLE)[0]
  return rng.choice(w.CREATURES)[0] if r < 0.9 else rng.choice(HUMANS)


def gender(rng: random.Random, kind: str) -> bool:
  """Draws the gender of a hero of this kind; True: female."""
  last = kind.split()[-1]
  if kind in FEMALE_KINDS or last in FEMALE_KINDS:
    return True
  if kind in MALE_KINDS or last in MALE_KINDS:
    return False
  return (stable(kind) % 2 == 0) if rng.random() < 0.5 else rng.random() < 0.5


def pick_name(rng: random.Random, kind: str, female: bool) -> str:
  names = w.FEMALE if female else w.MALE
  r = rng.random()
  if r < 0.4:
    return names[(stable(kind) + rng.randrange(3) * 37) % len(names)]
  return rng.choice(names) if r < 0.92 else invent_name(rng, female)


def speaker(rng: random.Random, kind: str, name: str) -> Callable[[], str]:
  """Returns a function that names somebody: mostly by the name, sometimes as 'the fox'."""
  return lambda: name if rng.random() < 0.68 else "the " + kind


def cap(text: str) -> str:
  return text[:1].upper() + text[1:]


def people(rng: random.Random, ask: Ask) -> dict[str, Value]:
  """Marks of hero and friend, who always differ in gender, so that 'he' and 'she' are unambiguous."""
  kind = ask.hero or pick_hero(rng)
  female = gender(rng, kind) if ask.female is None else ask.female
  name = ask.name or pick_name(rng, kind, female)
  friend = ask.friend
  while not friend or friend == kind or (not ask.friend and friend in (MALE_KINDS if not female else FEMALE_KINDS)):
    friend = pick_hero(rng)
  fname = pick_name(rng, friend, not female)
  while fname == name:
    fname = pick_name(rng, friend, not female)
  env: dict[str, Value] = {"k": kind.split()[-1] if kind in HUMANS else kind, "n": name, "fk": friend, "fn": fname}
  env["h"], env["f"] = speaker(rng, str(env["k"]), name), speaker(rng, friend, fname)
  for prefix, she in (("", female), ("f", not female)):
    for he, his, him, himself in (("she", "her", "her", "herself") if she else ("he", "his", "him", "himself"),):
      env[prefix + "he"], env[prefix + "his"], env[prefix + "him"], env[prefix + "himself"] = he, his, him, himself
  for low, high in (("h", "H"), ("f", "F")):
    env[high] = lambda low=low: cap(env[low]())  # type: ignore[operator,misc]
  env["He"], env["His"], env["FHe"] = cap(str(env["he"])), cap(str(env["his"])), cap(str(env["fhe"]))
  adjectives = [w.ADJ_HERO[stable(kind + str(i)) % len(w.ADJ_HERO)] for i in range(3)]
  adj = ask.adj or (rng.choice(adjectives) if rng.random() < 0.4 else rng.choice(w.ADJ_HERO))
  env["adj"] = adj
  bare = kind in HUMANS and " " in kind
  env["ha"] = f"a {adj} {kind}" if ask.adj or (rng.random() < 0.8 and not bare) else f"a {kind}"
  env["ha_c"] = cap(str(env["ha"]))
  env["fadj"] = rng.choice(w.ADJ_HERO)
  env["a_f"] = f"a {env['fadj']} {friend}"
  return env


def world(rng: random.Random, ask: Ask, env: dict[str, Value]) -> None:
  """Adds marks to env: the object, the food, the places, and whatever single plots need."""
  obj = ask.obj or rng.choice(w.OBJECTS)[0]
  adj = ask.obj_adj or ("" if " " in obj or rng.random() < 0.3 else rng.choice(w.ADJ_OBJECT[:-4] + w.MATERIAL))
  described = f"{adj} {obj}".strip()
  seen = [bool(ask.obj and ask.mention)]

  def mention() -> str:
    first, seen[0] = not seen[0], True
    return "a " + described if first else "the " + obj

  env["ao"], env["o"], env["oa"], env["oa_a"] = mention, obj, described, "a " + described
  food = ask.food or rng.choice([f[0] for f in w.FOODS if f[1] in COOKED])
  env["food"], env["food_a"], env["food_pl"] = food, article(food), plural(food)
  settings = [s for s in w.SETTINGS if s[0] == ask.setting] or [
    w.SETTINGS[stable(str(env["k"]) + "place") % len(w.SETTINGS)] if rng.random() < 0.25 else rng.choice(w.SETTINGS)]
  place, inside, _ = settings[0]
  noun = place
  bare = place in ("moon", "sea", "train station")
  adj_place = rng.choice(w.ADJ_PLACE) + " " if rng.random() < 0.4 and not bare else ""
  setting = inside if not adj_place else inside.replace(" a big " + noun, f" a {adj_place}{noun}").replace(
    " a " + noun, f" a {adj_place}{noun}").replace(" an " + noun, f" a {adj_place}{noun}")
  env["setting"], env["setting_c"], env["place"] = setting, cap(setting), place if place in TOWNS else "village"
  env["into"] = lambda: rng.choice(w.SETTINGS)[2]
  env["hide"], env["hide2"] = rng.choice(w.HIDING), rng.choice(NOOKS)
  env["season"] = ask.theme if ask.theme in SEASONS else rng.choice(SEASONS)
  env["an_odd"], env["wild"], env["structure"] = rng.choice(ODD), rng.choice(WILD), rng.choice(STRUCTURES)
  env["villain"] = rng.choice([v for v in VILLAINS if v not in (env["k"], env["fk"])])
  env["riddle"], env["solution"] = rng.choice(p.RIDDLES)
  env["secret"], env["secret_detail"] = rng.choice(p.SECRETS)
  env["seed"], env["seed_end"] = rng.choice(p.SEEDS)
  env["wish"], env["wishq"], env["wish_bad"] = rng.choice(p.WISHES)
  env["end_race"], env["winner"] = rng.choice(p.RACE_ENDS)
  env["fear"], env["fevent"], env["flesson"] = next((f for f in w.FEARS if f[0] == ask.fear), rng.choice(w.FEARS))
  skill = next((s for s in w.SKILLS if s[0] == ask.skill), rng.choice(w.SKILLS))
  env["skill"], env["skillplace"], env["skilladvice"] = skill
  env["x"] = ask.theme or ask.mention
  env["x_c"] = cap(str(env["x"]))
  env.update(ask.extra)


def daily(rng: random.Random, kind: str) -> str:
  """One sentence about how a hero of this kind lives."""
  for name, _, home, food, _, _, _, _ in w.ANIMALS:
    if name == kind:
      return rng.choice([
        f"{{His}} favourite food was {food}.", f"{{He}} had a cosy home: a {home}.", "Every morning {he} greeted the sun.",
        f"There was nothing that {{he}} liked more than {food}.", "{He} had a good nose and quick ears."])
  for name, _, _, tool, day in w.PEOPLE:
    if name == kind:
      return rng.choice([f"Every day, {{he}} {day}.", f"{{He}} {day}.", f"{{He}} always had {tool} at hand.",
                         f"In the mornings, {{he}} {day}."])
  for name, _, can in w.CREATURES:
    if name == kind:
      return rng.choice([f"Like every {name}, {{he}} could {can}.",
                         f"{{He}} could {can}, but {{he}} would rather make friends."])
  return rng.choice(["{He} asked a hundred questions a day.", "{He} loved to be outside.",
                     "{His} pockets were full of useful things.", "{He} knew every stone and every tree."])


@dataclass
class Story:
  """A told story: its text, questions about it with answers, and the request that it answers."""
  text: str
  questions: list[tuple[str, str]]
  ask: Ask


def usable(ask: Ask) -> list[Plot]:
  """The plots in which everything that the request names plays a part."""
  if ask.plots:
    return [ALL_PLOTS[name] for name in ask.plots]
  wanted = {need for need, asked in (("o", ask.obj), ("food", ask.food)) if asked}
  out = [plot for plot in ALL_PLOTS.values() if wanted <= plot.needs]
  if ask.food and next((f[1] for f in w.FOODS if f[0] == ask.food), "cake") not in COOKED:
    out = [plot for plot in out if plot.name in ("trick", "share", "mystery")]
  themed = [plot for plot in out if ask.theme in plot.themes]
  return themed or out


def tell(rng: random.Random, ask: Ask) -> Story:
  """A full story for a request."""
  env = people(rng, ask)
  world(rng, ask, env)
  kind = ask.hero or str(env["k"])
  style = stable((ask.hero or ask.obj or ask.food or ask.theme or ask.friend) + "style") % STYLES
  plots = usable(ask)
  lead = [plots[stable(f"{kind}{ask.obj}{i}") % len(plots)] for i in range(3)]
  plot = rng.choice(lead) if rng.random() < 0.55 else rng.choice(plots)
  intros = p.INTROS_THEME if ask.theme else p.INTROS_WITH if ask.mention else p.INTROS
  intro = intros[stable(f"{style}intro") % len(intros)] if rng.random() < 0.35 else rng.choice(intros)
  parts = [intro]
  if rng.random() < 0.5:
    parts.append(daily(rng, kind))
  for i, stage in enumerate(plot.stages):
    parts.append(stage[stable(f"{style}{plot.name}{i}") % len(stage)] if rng.random() < 0.3 else rng.choice(stage))
  r = rng.random()
  if r < 0.3:
    parts.append(rng.choice(p.CLOSERS))
  elif r < 0.5:
    parts.append(plot.moral)
  paragraphs = rng.random() < 0.75
  breaks = (len(parts) // 3 + 1, 2 * len(parts) // 3 + 1) if paragraphs else ()
  body: list[str] = []
  for i, part in enumerate(parts):
    text = polish(expand(rng, part, env, style))
    body.append(("\n\n" if i in breaks else " " if i else "") + text)
  questions = [(f"What was the {env['k']}'s name?", f"The {env['k']}'s name was {env['n']}."),
               (f"Who was {env['n']}?", f"{env['n']} was {env['ha']}."),
               (f"Who was {env['fn']}?", f"{env['fn']} was a {env['fk']}."),
               (f"Where did {env['n']} live?", f"{env['n']} lived {env['setting']}."),
               ("What is the moral of the story?", plot.moral), ("What do we learn from the story?", plot.moral)]
  questions += [(q, a) for q, a in plot.questions] * 3
  done = [(polish(expand(rng, q, env)), polish(expand(rng, a, env))) for q, a in questions]
  return Story("".join(body), done, ask)


def tell_short(rng: random.Random, ask: Ask) -> Story:
  """A story of a few sentences."""
  env = people(rng, ask)
  world(rng, ask, env)
  minis = [m for m in p.MINIS if not ask.obj or "{ao}" in m]
  intros = p.INTROS_THEME if ask.theme else p.INTROS_WITH if ask.mention else p.INTROS
  text = " ".join(polish(expand(rng, part, env)) for part in (rng.choice(intros), rng.choice(minis)))
  return Story(text, [(f"What was the {env['k']}'s name?", f"The {env['k']}'s name was {env['n']}.")], ask)


def poem(rng: random.Random, topic: str) -> str:
  """Two to four rhyming couplets about a noun."""
  lines = []
  for i, couplet in enumerate(rng.sample(p.COUPLETS, rng.choice([2, 3, 4]))):
    x = "a " + topic if i == 0 else "the " + topic
    first, second = couplet.replace("{x}", x).replace("{X}", x).split(" / ")
    lines += [polish(cap(first)), re.sub(r"\ba (?=[aeiou])", "an ", second)]
  return "\n".join(lines)


def plot_ask(rng: random.Random, hero: str, adj: str, described: str) -> Ask:
  """A request that says what happens in the story."""
  text, plots = rng.choice(p.PLOT_ASKS)
  female, friend = gender(rng, hero), pick_hero(rng)
  while friend == hero or friend in (FEMALE_KINDS if female else MALE_KINDS):
    friend = pick_hero(rng)
  obj, food = rng.choice(w.OBJECTS)[0], rng.choice([f[0] for f in w.FOODS if f[1] in COOKED])
  (secret, detail), (seed, seed_end) = rng.choice(p.SECRETS), rng.choice(p.SEEDS)
  extra = {"structure": rng.choice(STRUCTURES), "wild": rng.choice(WILD), "secret": secret, "secret_detail": detail,
           "seed": seed, "seed_end": seed_end, "villain": rng.choice([v for v in VILLAINS if v not in (hero, friend)])}
  full = text.format(d=described, hero=hero, friend=friend, obj=obj, food=food, food_a=article(food),
                     his="her" if female else "his", **extra)

  def used(mark: str, value: str) -> str:
    return value if mark in text else ""

  return Ask(full, used("{d}", hero) or used("{hero}", hero), used("{d}", adj), friend=used("{friend}", friend),
             obj=used("{obj}", obj), food=used("{food", food), plots=plots.split(), female=female,
             mention=used("{friend}", f"a {friend}"), extra=extra)


def make_ask(rng: random.Random) -> Ask:
  """Draws a user's request for a story."""
  hero = pick_hero(rng) if rng.random() < 0.96 else invent_noun(rng)
  adj = rng.choice(w.ADJ_HERO) if rng.random() < 0.25 and hero not in HUMANS else ""
  described = f"a {adj} {hero}" if adj else f"a {hero}"
  obj = rng.choice(w.OBJECTS)[0] if rng.random() < 0.96 else invent_noun(rng)
  obj_adj = rng.choice(w.ADJ_OBJECT + w.MATERIAL) if rng.random() < 0.4 and " " not in obj else ""
  thing = f"a {obj_adj} {obj}" if obj_adj else f"a {obj}"
  object_plots = OBJECT_PLOTS.get(obj_adj, [])
  food = rng.choice(w.FOODS)[0]
  if rng.random() < 0.12:
    return plot_ask(rng, hero, adj, described)
  r = rng.random()
  if r < 0.24:
    return Ask(described, hero, adj)
  if r < 0.28:
    return Ask(plural(hero), hero)
  if r < 0.33:
    female = gender(rng, hero)
    name = rng.choice(w.FEMALE if female else w.MALE) if rng.random() < 0.8 else invent_name(rng, female)
    if rng.random() < 0.25:
      return Ask(f"my {hero} {name}", hero, "", name, female=female)
    return Ask(f"{described} {rng.choice(['named', 'called'])} {name}", hero, adj, name, female=female)
  if r < 0.50:
    return Ask(f"{described} and {thing}", hero, adj, obj=obj, obj_adj=obj_adj, plots=object_plots, mention=thing)
  if r < 0.54:
    verb, plots = rng.choice(VERB_PLOTS)
    return Ask(f"{described} who {verb} {thing}", hero, adj, obj=obj, obj_adj=obj_adj, plots=plots, mention=thing)
  if r < 0.63:
    friend = pick_hero(rng)
    while friend == hero:
      friend = pick_hero(rng)
    return Ask(f"{described} and a {friend}", hero, adj, friend=friend, mention=f"a {friend}")
  if r < 0.72:
    text = rng.choice([thing, thing, plural(obj) if not obj_adj else thing])
    return Ask(text, obj=obj, obj_adj=obj_adj, plots=object_plots, mention=thing)
  if r < 0.76:
    return Ask(article(food), food=food, mention=article(food))
  if r < 0.79:
    return Ask(f"{described} and {article(food)}", hero, adj, food=food, mention=article(food))
  if r < 0.83:
    place = rng.choice(w.SETTINGS)
    return Ask(f"{described} {place[1]}", hero, adj, setting=place[0])
  if r < 0.85:
    place = rng.choice(w.SETTINGS)
    return Ask(rng.choice([f"a {place[0]}", f"the {place[0]}"]), setting=place[0], mention=f"the {place[0]}")
  if r < 0.89:
    fear = rng.choice(w.FEARS)[0]
    return Ask(f"{described} who is {rng.choice(['afraid', 'scared'])} of {fear}", hero, adj, fear=fear, plots=["fear"])
  if r < 0.93:
    skill = rng.choice(w.SKILLS)[0]
    verb = rng.choice(["wants to learn to", "wants to", "learns to", "cannot"])
    return Ask(f"{described} who {verb} {skill}", hero, adj, skill=skill, plots=["learn"])
  theme = rng.choice(w.THEMES)
  if r < 0.97:
    return Ask(theme, theme=theme)
  return Ask(f"{described} and {theme}", hero, adj, theme=theme)




def casual(rng: random.Random, text: str) -> str:
  """Sometimes types as people do: no capital, no full stop."""
  text = re.sub(r"\b([Aa]) (?=[aeiou]|honest|hour)(?!(?:uni|use|one\b))", r"\1n ", text)
  r = rng.random()
  if r < 0.12:
    text = text.lower()
  if r > 0.3 and r < 0.36:
    text = text[:1].lower() + text[1:]
  return text.rstrip(".") if rng.random() < 0.15 else text


def turn(user: str, assistant: str) -> list[Turn]:
  return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def story_turns(rng: random.Random) -> list[Turn]:
  """A request, its story and, at times, questions about it or another story."""
  ask = make_ask(rng)
  r = rng.random()
  if r < 0.06:
    topic = rng.choice([ask.hero, ask.obj]) or "star"
    return turn(casual(rng, rng.choice(p.POEM).format(t=f"a {topic}")), poem(rng, topic))
  if r < 0.14:
    ask = Ask()
    story, request = tell(rng, ask), rng.choice(p.OPEN)
  elif r < 0.22:
    story, request = tell_short(rng, ask), rng.choice(p.SHORT).format(t=ask.text)
  else:
    story = tell(rng, ask)
    request = (p.REQUESTS[0] if rng.random() < 0.2 else rng.choice(p.REQUESTS)).format(t=ask.text)
  out = turn(casual(rng, request), story.text)
  if rng.random() < 0.5:
    for question, answer in rng.sample(story.questions, min(len(story.questions), rng.choice([1, 1, 2, 3]))):
      out += turn(casual(rng, question), answer)
  if rng.random() < 0.12:
    out += turn(casual(rng, rng.choice(p.LIKED)), rng.choice(p.LIKED_ANSWERS))
  if rng.random() < 0.3:
    again = Ask(ask.text, ask.hero) if ask.hero and rng.random() < 0.3 else Ask()
    request = f"Tell me another story about a {ask.hero}." if again.hero else rng.choice(p.MORE)
    out += turn(casual(rng, request), (tell if rng.random() < 0.6 else tell_short)(rng, again).text)
  return out


def question_turn(rng: random.Random) -> list[Turn]:
  question, answer = facts.question(rng)
  return turn(casual(rng, question), polish(answer))


def chat_turn(rng: random.Random) -> list[Turn]:
  user, assistant = rng.choice(w.CHAT)
  return turn(casual(rng, user if rng.random() < 0.8 else user.rstrip("?!.")), assistant)


def any_word(rng: random.Random) -> str:
  r = rng.random()
  if r < 0.3:
    return rng.choice(w.FEMALE + w.MALE) if rng.random() < 0.5 else invent_noun(rng)
  if r < 0.6:
    return rng.choice(w.OBJECTS)[0]
  return pick_hero(rng) if r < 0.9 else rng.choice(w.FOODS)[0]


def copy_turn(rng: random.Random) -> list[Turn]:
  """Small tasks that need words of the request in the answer: they teach copying early and densely."""
  kind = rng.random()
  if kind < 0.4:
    listed = [any_word(rng) for _ in range(rng.randrange(2, 10))]
    text = ", ".join(listed)
    return turn(rng.choice(p.REPEAT).format(t=text), text)
  if kind < 0.7:
    ask = make_ask(rng)
    env = people(rng, ask)
    world(rng, ask, env)
    intros = p.INTROS_THEME if ask.theme else p.INTROS_WITH if ask.mention else p.INTROS
    return turn(casual(rng, rng.choice(p.BEGIN).format(t=ask.text)), polish(expand(rng, rng.choice(intros), env)))
  x, y = pick_hero(rng), any_word(rng).lower()
  return turn(casual(rng, rng.choice(p.SENTENCE).format(x=x, y=y)),
              polish(expand(rng, rng.choice(p.SENTENCES), {"x": x, "y": y, "into": rng.choice(w.SETTINGS)[2]})))


def conversation(rng: random.Random) -> list[Turn]:
  """One chat of one to about six exchanges."""
  r = rng.random()
  out: list[Turn] = []
  if r < 0.12:
    for _ in range(rng.randrange(3, 9)):
      out += copy_turn(rng)
  elif r < 0.66:
    if rng.random() < 0.15:
      out += chat_turn(rng)
    out += story_turns(rng)
    if rng.random() < 0.2:
      out += chat_turn(rng) if rng.random() < 0.5 else question_turn(rng)
  else:
    for _ in range(rng.choice([1, 2, 3, 4, 5])):
      out += question_turn(rng) if rng.random() < 0.75 else chat_turn(rng)
    if rng.random() < 0.15:
      out += story_turns(rng)
  return out


def conversations(seed: int) -> Iterator[list[Turn]]:
  """An endless, reproducible stream of chats."""
  rng = random.Random(seed)
  while True:
    yield conversation(rng)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
  parser.add_argument("--seed", type=int, default=1)
  parser.add_argument("--count", type=int, default=5)
  args = parser.parse_args()
  stream = conversations(args.seed)
  for _ in range(args.count):
    for message in next(stream):
      sys.stdout.write(f"{message['role']}: {message['content']}\n")
    sys.stdout.write("---\n")


if __name__ == "__main__":
  main()
