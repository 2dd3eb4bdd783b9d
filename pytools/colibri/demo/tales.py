"""Tiny tales: one child, one pet, a small trouble, a good end, a question and its answer."""
from dataclasses import dataclass, field

from .dice import Dice

GIRLS = ("Mia", "Anna", "Nora", "Lily", "Rosa", "Zoe", "Clara", "Ella", "Ivy", "Ruby", "Maya", "Emma")
BOYS = ("Tom", "Ben", "Leo", "Max", "Sam", "Finn", "Jack", "Noah", "Hugo", "Oscar", "Adam", "Felix")
PETS = ("dog", "cat", "rabbit", "pony", "duck", "goat", "mouse", "parrot", "turtle", "hedgehog", "owl",
        "otter")
PET_NAMES = ("Pip", "Coco", "Biscuit", "Pepper", "Button", "Maple", "Fern", "Dot", "Clover", "Peanut",
             "Willow", "Ziggy")
KINDS = ("kind", "brave", "shy", "clever", "cheerful", "curious", "quiet", "happy", "gentle", "patient")
COLOURS = ("red", "blue", "green", "yellow", "white", "brown", "orange", "silver")
THINGS = ("ball", "kite", "hat", "boat", "drum", "key", "lamp", "scarf", "bell", "cup", "book", "umbrella")
PLACES = ("the garden", "the forest", "the beach", "the park", "the old barn", "the river", "the meadow",
          "the market", "the hill", "the library")
SPOTS = ("under a big tree", "behind a rock", "in the tall grass", "next to the gate", "on top of the wall",
         "inside a basket", "below the bridge", "near the well")
KIN = ("mother", "father", "grandmother", "grandfather", "aunt", "uncle")
SKILLS = ("swim", "sing", "dance", "paint", "read", "climb", "bake", "whistle")
SKIES = ("sunny", "windy", "rainy", "foggy", "snowy", "warm", "icy", "cold")
WHOLE_FOODS = ("apple", "pear", "plum", "cookie", "orange", "muffin")        # one of them: "an apple"
BAKED_FOODS = ("cake", "pie", "pancake", "omelette")                          # somebody makes one
PART_FOODS = ("bread", "soup", "honey", "cheese")                             # "some bread"
GUESTS = ("old woman", "old man", "tired farmer", "poor fisherman", "young sailor", "lost traveller")
LESSONS = ("It is good to help a friend.", "Sharing makes everyone happy.", "It is fine to ask for help.",
           "Being kind is never a waste of time.", "Even a small friend can do big things.",
           "If you look with care, you will find what you need.")


def one(noun: str) -> str:
    """The noun with its indefinite article (no word here starts with a silent h or a spoken "you")."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[0].upper() + text[1:]


@dataclass
class Tale:
    """A tale, its hero, and every question that can be asked about it."""

    hero: str
    sentences: list[str]
    questions: list[tuple[str, str]] = field(default_factory=list)

    @property
    def body(self) -> str:
        """The tale without questions."""
        return " ".join(self.sentences)


@dataclass(frozen=True)
class Cast:
    """Who and what the tale is about."""

    hero: str
    he: str
    him: str
    his: str
    child: str
    kind: str
    pet: str
    name: str
    colour: str
    thing: str
    place: str
    spot: str
    kin: str
    sky: str

    @property
    def treasure(self) -> str:
        """The coloured thing."""
        return f"{self.colour} {self.thing}"


def _cast(dice: Dice) -> Cast:
    girl = dice.chance(0.5)
    he, him, his, child = ("she", "her", "her", "girl") if girl else ("he", "him", "his", "boy")
    return Cast(dice.pick(GIRLS if girl else BOYS), he, him, his, child, dice.pick(KINDS), dice.pick(PETS),
                dice.pick(PET_NAMES), dice.pick(COLOURS), dice.pick(THINGS), dice.pick(PLACES),
                dice.pick(SPOTS), dice.pick(KIN), dice.pick(SKIES))


def openings(cast: Cast) -> list[str]:
    """The first sentences a tale can have."""
    return [f"Once upon a time there was {one(cast.kind)} {cast.child} named {cast.hero}.",
            f"There once was {one(cast.kind)} {cast.child} called {cast.hero}.",
            f"{cast.hero} was {one(cast.kind)} {cast.child} who lived near {cast.place}."]


def _lost(c: Cast, dice: Dice) -> Tale:
    treat = dice.pick(WHOLE_FOODS)
    lines = [
        dice.pick([f"One {c.sky} day {c.hero} took {c.his} {c.treasure} to {c.place}.",
                   f"One {c.sky} morning {c.hero} went to {c.place} with {c.his} {c.treasure}."]),
        dice.pick([f"{c.hero} played and played until the {c.thing} was gone.",
                   f"Then the {c.thing} was lost."]),
        dice.pick([f'"Where is my {c.thing}?" asked {c.hero}.',
                   f'"Oh no, I lost my {c.thing}!" said {c.hero}.']),
        f"{c.hero} and {c.name} looked everywhere.", f"At last {c.name} found the {c.treasure} {c.spot}.",
        dice.pick([f'"Thank you, {c.name}!" said {c.hero}, and {c.he} gave the {c.pet} {one(treat)}.',
                   f"{c.hero} was so glad that {c.he} gave {c.name} {one(treat)}."])]
    return Tale(c.hero, lines, [
        (f"Who found the {c.thing}?", f"{c.name} the {c.pet}."),
        (f"Where was the {c.thing}?", f"It was {c.spot}."),
        (f"What did {c.hero} lose?", f"{capital(one(c.treasure))}."),
        (f"What did {c.name} get?", f"{capital(one(treat))}."),
        (f"What color was the {c.thing}?", f"It was {c.colour}."),
        (f"Where did {c.hero} go?", f"To {c.place}.")])


def _bird(c: Cast, dice: Dice) -> Tale:
    food = dice.pick(PART_FOODS)
    lines = [
        f"One {c.sky} day {c.hero} and {c.name} walked to {c.place}.",
        f"They saw a tiny bird {c.spot} with a hurt wing.",
        dice.pick(['"Can you help me?" asked the bird.', '"Please help me," said the bird.']),
        f'"Of course," said {c.hero}, and {c.he} wrapped the wing in {c.his} {c.colour} scarf.',
        f"{c.name} brought some {food} for the bird.",
        dice.pick(["After three days the bird could fly again.", "Soon the bird could sing and fly again."])]
    return Tale(c.hero, lines, [
        ("Who had a hurt wing?", "The bird."),
        (f"What did {c.name} bring?", f"Some {food}."),
        ("What color was the scarf?", f"It was {c.colour}."),
        ("Where was the bird?", f"It was {c.spot}."),
        ("Who helped the bird?", f"{c.hero} and {c.name}."),
        (f"Where did {c.hero} go?", f"To {c.place}.")])


def _share(c: Cast, dice: Dice) -> Tale:
    food, guest = dice.pick(BAKED_FOODS), dice.pick(GUESTS)
    lines = [
        f"One {c.sky} morning {c.his} {c.kin} made {one(food)} for {c.hero}.",
        f"On the way to {c.place}, {c.hero} met {one(guest)} who had nothing to eat.",
        dice.pick([f'"I am so hungry," said the {guest}.', f'"May I have some?" asked the {guest}.']),
        f"{c.hero} cut the {food} in two and gave one half to the {guest}.", f"{c.name} got the last crumb.",
        f"The {guest} smiled and gave {c.him} {one(c.treasure)}."]
    return Tale(c.hero, lines, [
        ("Who was hungry?", f"The {guest}."),
        (f"What did {c.hero} share?", f"The {food}."),
        (f"Who made the {food}?", f"{capital(c.his)} {c.kin}."),
        ("Who got the last crumb?", f"{c.name} the {c.pet}."),
        (f"What did {c.hero} get?", f"{capital(one(c.treasure))}."),
        (f"Where did {c.hero} go?", f"To {c.place}.")])


def _learn(c: Cast, dice: Dice) -> Tale:
    skill = dice.pick(SKILLS)
    lines = [
        f"{c.hero} wanted to learn to {skill}, but it was hard.",
        dice.pick([f'"I can not do it," said {c.hero}.', f'"I will never learn it," said {c.hero}.']),
        f'"Try again," said {c.his} {c.kin}. "I will help you."',
        f"So they went to {c.place} every {c.sky} day.",
        f"{c.name} came along and sat {c.spot}.",
        f"One day {c.hero} could do it all alone, and {c.his} {c.kin} gave {c.him} {one(c.treasure)}."]
    return Tale(c.hero, lines, [
        (f"Who helped {c.hero}?", f"{capital(c.his)} {c.kin}."),
        (f"What did {c.hero} get?", f"{capital(one(c.treasure))}."),
        (f"Where did {c.name} sit?", f"{capital(c.spot)}."),
        (f"What did {c.hero} learn?", f"To {skill}."),
        (f"Where did {c.hero} go?", f"To {c.place}."),
        (f"What color was the {c.thing}?", f"It was {c.colour}.")])


def _night(c: Cast, dice: Dice) -> Tale:
    lines = [
        f"One {c.sky} night {c.hero} heard a strange sound.", f"It came from {c.place}.",
        dice.pick([f'"Come with me, {c.name}," said {c.hero}.',
                   f"{c.hero} was afraid, but {c.he} went to look."]),
        f"There, {c.spot}, sat a baby fox with {one(c.treasure)}.",
        dice.pick(['"I only wanted to play," said the fox.', '"Will you play with me?" asked the fox.']),
        f"{c.hero} laughed, and they all played until the sun came up."]
    return Tale(c.hero, lines, [
        ("Where did the sound come from?", f"From {c.place}."),
        ("Where did the fox sit?", f"{capital(c.spot)}."),
        ("What did the fox have?", f"{capital(one(c.treasure))}."),
        ("Who heard a sound?", f"{c.hero}."),
        ("When did they stop?", "When the sun came up."),
        (f"What color was the {c.thing}?", f"It was {c.colour}.")])


def _gift(c: Cast, dice: Dice) -> Tale:
    treat = dice.pick(WHOLE_FOODS)
    lines = [
        f"It was the birthday of {c.his} {c.kin}, and {c.hero} had no gift.",
        f"So {c.hero} and {c.name} went to {c.place} to look for one.",
        f"It was {one(c.sky)} day, and {c.name} ate {one(treat)} on the way.",
        f"{capital(c.spot)} they found {one(c.treasure)}.",
        dice.pick([f'"This is just right!" said {c.hero}.', f'"What a lovely {c.thing}!" said {c.hero}.']),
        f"{capital(c.his)} {c.kin} loved the {c.thing} and gave {c.him} a big hug."]
    return Tale(c.hero, lines, [
        ("Who had a birthday?", f"{capital(c.his)} {c.kin}."),
        ("What did they find?", f"{capital(one(c.treasure))}."),
        ("Where did they find it?", f"{capital(c.spot)}."),
        (f"What did {c.name} eat?", f"{capital(one(treat))}."),
        (f"Where did {c.hero} go?", f"To {c.place}."),
        (f"What color was the {c.thing}?", f"It was {c.colour}.")])


PLOTS = (_lost, _bird, _share, _learn, _night, _gift)


def tell(dice: Dice) -> Tale:
    """One tale with all its questions, in random order."""
    c = _cast(dice)
    first = dice.pick(openings(c))
    friend = dice.pick([f"{c.hero} had {one(c.pet)} named {c.name}.",
                        f"{capital(c.his)} best friend was {one(c.pet)} named {c.name}.",
                        f"{c.hero} lived with {c.his} {c.kin} and {one(c.pet)} called {c.name}."])
    tale = dice.pick(PLOTS)(c, dice)
    tale.sentences[:0] = [first, friend]
    if dice.chance(0.4):
        tale.sentences.append(dice.pick(LESSONS))
    tale.questions += [(f"What was the {c.pet} called?", f"{c.name}."),
                       (f"What kind of animal was {c.name}?", f"{capital(one(c.pet))}."),
                       ("Who is this tale about?", f"{capital(one(c.child))} named {c.hero}.")]
    tale.questions = dice.shuffled(tale.questions)
    return tale


def question_prompt(tale: Tale, question: str) -> str:
    """What the model is given to answer a question; the answer's first token carries the space before it."""
    return f"{tale.body} Question: {question} Answer:"
