"""Simple questions with answers, drawn from the word lists."""
import random

import words as w

DAYS = w.words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = w.words("January February March April May June July August September October November December")
SEASONS = w.words("spring summer autumn winter")
NUMBERS = w.words("""zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty""")


def a(noun: str) -> str:
  return ("an " if noun[0] in "aeiou" else "a ") + noun


def animal(rng: random.Random) -> tuple[str, str]:
  name, baby, home, food, sound, size, cover, colour = rng.choice(w.ANIMALS)
  one = a(name)
  kind = rng.randrange(8)
  if kind == 0:
    return (rng.choice([f"What do you call a baby {name}?", f"What is a baby {name} called?", f"What is the name of a baby {name}?"]),
            f"A baby {name} is called {a(baby)}." if baby != "baby" else f"A baby {name} is simply called a baby {name}.")
  if kind == 1:
    where = f"in the {home}" if home in ("ocean", "savanna", "jungle", "desert", "soil", "water") else f"in {a(home)}"
    if home.split()[0] in ("nest", "hole", "hillside", "mountain", "plain", "ledge", "shore", "cliff", "icy", "warm", "gum", "river") or \
       home in ("lagoon", "farm", "pond", "lake"):
      where = {"water": "in water"}.get(home, f"{'on' if home.split()[-1] in ('shore', 'cliff', 'mountain', 'plain', 'hillside', 'ledge', 'farm', 'wall') else 'in'} {a(home)}")
    return (rng.choice([f"Where does {one} live?", f"What is the home of {one}?"]), f"{one} lives {where}.".capitalize())
  if kind == 2:
    return (rng.choice([f"What does {one} eat?", f"What do {name}s like to eat?" if name[-1] not in "sxhpe" else f"What does {one} like to eat?"]),
            cap(f"{one} eats {food}."))
  if kind == 3:
    return (rng.choice([f"What sound does {one} make?", f"What noise does {one} make?", f"What does {one} say?"]), cap(f"{one} {sound}."))
  if kind == 4:
    return (rng.choice([f"What colour is {one}?", f"What color is {one}?"]), cap(f"{one} is often {colour}."))
  if kind == 5:
    other = rng.choice(w.ANIMALS)
    while other[5] == size:
      other = rng.choice(w.ANIMALS)
    big, small = (name, other[0]) if int(size) > int(other[5]) else (other[0], name)
    return (rng.choice([f"Which is bigger, {one} or {a(other[0])}?", f"What is bigger, {one} or {a(other[0])}?",
                        f"Is {one} bigger than {a(other[0])}?"]), cap(f"{a(big)} is bigger than {a(small)}."))
  if kind == 6:
    return (f"What covers the body of {one}?", cap(f"{one} has {cover}."))
  return (rng.choice([f"Tell me something about {one}.", f"What is {one}?", f"What do you know about {one}?"]),
          cap(f"{one} is an animal. It is often {colour}, it eats {food}, and its baby is called {a(baby)}."))


def cap(text: str) -> str:
  return text[:1].upper() + text[1:]


def person(rng: random.Random) -> tuple[str, str]:
  name, work, where, tool, _ = rng.choice(w.PEOPLE)
  kind = rng.randrange(4)
  if kind == 0:
    return (rng.choice([f"What does {a(name)} do?", f"What is the job of {a(name)}?", f"What is {a(name)}?"]), cap(f"{a(name)} {work}."))
  if kind == 1:
    return (f"Where does {a(name)} work?", cap(f"{a(name)} works {where}."))
  if kind == 2:
    return (f"What does {a(name)} need?", cap(f"{a(name)} needs {tool}."))
  return (f"Who {work}?", cap(f"{a(name)} {work}."))


def thing(rng: random.Random) -> tuple[str, str]:
  kind = rng.randrange(3)
  if kind == 0:
    name, use = rng.choice([o for o in w.OBJECTS if o[1]])
    be, it = ("are", name) if name == "scissors" else ("is", a(name) if name not in ("soap", "thread") else name)
    return (rng.choice([f"What {be} {it} for?", f"What {be} {it} used for?", f"What can you do with {it}?"]), cap(f"{it} {be} for {use}."))
  if kind == 1:
    name, colour = rng.choice(w.COLOURS_OF)
    return (rng.choice([f"What colour is {name}?", f"What color is {name}?", f"Which colour is {name}?"]), cap(f"{name} is {colour}."))
  name, food = rng.choice([f for f in w.FOODS if f[1] in ("fruit", "vegetable")])
  if rng.random() < 0.5:
    return (f"Is {a(name)} a fruit or a vegetable?", cap(f"{a(name)} is a {food}."))
  return (f"What is {a(name)}?", cap(f"{a(name)} is a {food}."))


def order(rng: random.Random) -> tuple[str, str]:
  names, what = rng.choice([(DAYS, "day"), (MONTHS, "month"), (SEASONS, "season")])
  i = rng.randrange(len(names))
  after = rng.random() < 0.6
  other = names[(i + (1 if after else -1)) % len(names)]
  word = "after" if after else "before"
  return (rng.choice([f"What {what} comes {word} {names[i]}?", f"Which {what} comes {word} {names[i]}?", f"What comes {word} {names[i]}?"]),
          cap(f"{other} comes {word} {names[i]}."))


def number(rng: random.Random) -> tuple[str, str]:
  kind = rng.randrange(4)
  x, y = rng.randrange(1, 11), rng.randrange(1, 11)
  if kind == 0:
    return (rng.choice([f"What is {x} plus {y}?", f"What is {x} + {y}?", f"How much is {x} plus {y}?", f"{x} + {y}"]), f"{x} plus {y} is {x + y}.")
  if kind == 1:
    x, y = max(x, y), min(x, y)
    return (rng.choice([f"What is {x} minus {y}?", f"What is {x} - {y}?", f"How much is {x} minus {y}?"]), f"{x} minus {y} is {x - y}.")
  if kind == 2:
    n = rng.randrange(3, 21)
    return (rng.choice([f"Count to {NUMBERS[n]}.", f"Count to {n}.", f"Can you count to {n}?"]), cap(", ".join(NUMBERS[1:n + 1]) + "."))
  n = rng.randrange(0, 20)
  return (rng.choice([f"What number comes after {n}?", f"What comes after {NUMBERS[n]}?"]), cap(f"{NUMBERS[n + 1]} comes after {NUMBERS[n]}."))


def opposite(rng: random.Random) -> tuple[str, str]:
  pair = rng.choice(w.OPPOSITES)
  x, y = pair if rng.random() < 0.65 else pair[::-1]
  return (rng.choice([f"What is the opposite of {x}?", f"What's the opposite of {x}?", f"Opposite of {x}?"]), f"The opposite of {x} is {y}.")


def unknown(rng: random.Random) -> tuple[str, str]:
  """Questions that a tiny model should not pretend to answer, with a polite refusal."""
  kind = rng.randrange(6)
  if kind == 0:
    country = rng.choice(w.COUNTRIES)
    return (rng.choice([f"What is the capital of {country}?", f"Who is the president of {country}?", f"How big is {country}?"]),
            f"I am sorry, I do not know that. But I can tell you a story about {country}.")
  if kind == 1:
    x, y = rng.randrange(11, 1000), rng.randrange(11, 1000)
    return (rng.choice([f"What is {x} times {y}?", f"What is {x} plus {y}?", f"{x} * {y}", f"How much is {x} minus {y}?"]),
            "That sum is too hard for a tiny model like me.")
  if kind == 2:
    task = rng.choice(w.TASKS)
    return f"Can you {task}?", "I am sorry, I cannot do that. I can tell you a story instead."
  topic = rng.choice(w.UNKNOWN)
  return (rng.choice([f"What do you know about {topic}?", f"Explain {topic}.", f"Can you explain {topic} to me?",
                      f"Tell me about {topic}.", f"How does {topic} work?", f"Write an essay about {topic}."]),
          rng.choice(["I am sorry, I do not know much about that. But I can tell you a story, if you like.",
                      f"I do not know enough about {topic}, but I can tell you a story about it.",
                      f"That is too hard for a tiny model like me. Shall I tell you a story about {topic}?"]))


def question(rng: random.Random) -> tuple[str, str]:
  """A question and its answer."""
  kinds = [animal, animal, animal, person, person, thing, order, number, opposite, unknown, unknown]
  if rng.random() < 0.25:
    q, answer = rng.choice(w.FACTS)
    return q, answer
  return rng.choice(kinds)(rng)
