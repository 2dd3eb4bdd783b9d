"""Spoken home commands and the intents they mean.

A *template* is a whole sentence pattern such as `{o}turn the {r} {lights} on`, built from a verb phrase and
a place for the room. Slots: `{o}` opening, `{r}` room, `{d}` / `{t}` degree before / after, `{lights}` etc.
one of the device's names. `templates()` lists every template of every intent; `split.py` decides which ones
training may see.
"""
import json
import re
from dataclasses import dataclass
from functools import cache

from .dice import Dice

# Canonical room -> the words a speaker may use for it.
ROOMS: dict[str, tuple[str, ...]] = {
    "kitchen": ("kitchen",), "bedroom": ("bedroom",), "bathroom": ("bathroom",),
    "living room": ("living room", "lounge"), "dining room": ("dining room",), "hallway": ("hallway", "hall"),
    "office": ("office", "study"), "nursery": ("nursery",), "garage": ("garage",), "attic": ("attic", "loft"),
    "basement": ("basement", "cellar"), "guest room": ("guest room", "spare room"),
}

DEVICES: dict[str, tuple[str, ...]] = {
    "lights": ("lights", "light", "lamps", "lamp"), "heating": ("heating", "heat", "radiator", "heater"),
    "blinds": ("blinds", "curtains", "shades", "shutters"), "music": ("music", "radio", "stereo"),
    "fan": ("fan", "ventilator"), "door": ("door",), "window": ("window", "windows"),
    "tv": ("tv", "television", "telly"),
}

DEGREE_BEFORE = ("", "", "", "a bit ", "a little ", "a little bit ", "slightly ", "much ")
DEGREE_AFTER = ("", "", "", " a bit", " a little", " a little bit", " slightly", " a notch")

# Verb phrases: [device] marks where the device stands; the room is placed around it in several ways.
PHRASES: dict[str, tuple[str, ...]] = {
    "lights.on": ("turn on [lights]", "turn [lights] on", "switch on [lights]", "switch [lights] on",
                  "put on [lights]", "put [lights] on"),
    "lights.off": ("turn off [lights]", "turn [lights] off", "switch off [lights]", "switch [lights] off",
                   "shut off [lights]", "put out [lights]"),
    "lights.brighter": ("turn up [lights]{t}", "turn [lights] up{t}", "make [lights] {d}brighter",
                        "brighten [lights]{t}",
                        "raise the brightness of [lights]{t}", "set [lights] {d}brighter"),
    "lights.dimmer": ("turn down [lights]{t}", "turn [lights] down{t}", "make [lights] {d}dimmer",
                      "dim [lights]{t}",
                      "lower the brightness of [lights]{t}", "set [lights] {d}dimmer"),
    "heat.up": ("turn up [heating]{t}", "turn [heating] up{t}", "make [heating] {d}warmer",
                "set [heating] {d}higher",
                "raise [heating]{t}"),
    "heat.down": ("turn down [heating]{t}", "turn [heating] down{t}", "make [heating] {d}cooler",
                  "set [heating] {d}lower", "lower [heating]{t}"),
    "blinds.open": ("open [blinds]{t}", "open up [blinds]", "raise [blinds]{t}", "pull up [blinds]{t}",
                    "pull [blinds] up{t}", "draw [blinds] open"),
    "blinds.close": ("close [blinds]{t}", "shut [blinds]", "lower [blinds]{t}", "pull down [blinds]{t}",
                     "pull [blinds] down{t}", "draw [blinds] closed"),
    "music.play": ("turn on [music]", "turn [music] on", "switch on [music]", "switch [music] on",
                   "start [music]",
                   "put on [music]"),
    "music.stop": ("turn off [music]", "turn [music] off", "switch off [music]", "switch [music] off",
                   "stop [music]", "shut off [music]"),
    "music.louder": ("turn up [music]{t}", "turn [music] up{t}", "make [music] {d}louder",
                     "set [music] {d}louder",
                     "raise the volume of [music]{t}"),
    "music.quieter": ("turn down [music]{t}", "turn [music] down{t}", "make [music] {d}quieter",
                      "set [music] {d}quieter", "lower the volume of [music]{t}"),
    "fan.on": ("turn on [fan]", "turn [fan] on", "switch on [fan]", "switch [fan] on", "start [fan]"),
    "fan.off": ("turn off [fan]", "turn [fan] off", "switch off [fan]", "switch [fan] off", "stop [fan]",
                "shut off [fan]"),
    "door.lock": ("lock [door]", "lock up [door]", "keep [door] locked", "make sure [door] is locked",
                  "bolt [door]"),
    "door.unlock": ("unlock [door]", "keep [door] unlocked", "make sure [door] is unlocked", "unbolt [door]"),
    "window.open": ("open [window]{t}", "open up [window]", "make sure [window] is open",
                    "keep [window] open"),
    "window.close": ("close [window]{t}", "shut [window]", "make sure [window] is closed",
                     "keep [window] closed"),
    "tv.on": ("turn on [tv]", "turn [tv] on", "switch on [tv]", "switch [tv] on", "start [tv]",
              "put on [tv]"),
    "tv.off": ("turn off [tv]", "turn [tv] off", "switch off [tv]", "switch [tv] off", "stop [tv]",
               "shut off [tv]"),
}

# Orders and wishes that name the room without a device of their own.
ORDERS: dict[str, tuple[str, ...]] = {
    "lights.on": ("light up the {r}", "give me some light in the {r}", "give the {r} some light"),
    "lights.brighter": ("make the {r} {d}brighter", "make it {d}brighter in the {r}",
                        "brighten up the {r}{t}",
                        "brighten the {r}{t}", "give me more light in the {r}", "give the {r} more light"),
    "lights.dimmer": ("make the {r} {d}dimmer", "make it {d}dimmer in the {r}", "make the {r} {d}darker",
                      "make it {d}darker in the {r}", "dim the {r}{t}", "give me less light in the {r}",
                      "give the {r} less light"),
    "heat.up": ("make the {r} {d}warmer", "make it {d}warmer in the {r}", "warm up the {r}{t}",
                "warm the {r} up{t}",
                "heat up the {r}{t}", "heat the {r} up{t}", "raise the temperature in the {r}{t}",
                "raise the {r} temperature{t}", "turn up the temperature in the {r}{t}",
                "turn up the {r} temperature{t}"),
    "heat.down": ("make the {r} {d}cooler", "make it {d}cooler in the {r}", "cool down the {r}{t}",
                  "cool the {r} down{t}", "make the {r} {d}colder", "make it {d}colder in the {r}",
                  "lower the temperature in the {r}{t}", "lower the {r} temperature{t}",
                  "turn down the temperature in the {r}{t}", "turn down the {r} temperature{t}"),
    "music.play": ("play some music in the {r}", "play music in the {r}", "play something in the {r}",
                   "put on some music in the {r}", "play a song in the {r}", "give me some music in the {r}"),
    "music.stop": ("stop playing music in the {r}", "stop playing in the {r}",
                   "stop playing songs in the {r}"),
    "music.louder": ("make it {d}louder in the {r}", "turn up the volume in the {r}{t}",
                     "turn up the {r} volume{t}",
                     "raise the volume in the {r}{t}", "raise the {r} volume{t}"),
    "music.quieter": ("make it {d}quieter in the {r}", "turn down the volume in the {r}{t}",
                      "turn down the {r} volume{t}", "lower the volume in the {r}{t}",
                      "lower the {r} volume{t}"),
    "window.open": ("let some fresh air into the {r}", "let fresh air into the {r}", "air the {r}{t}",
                    "air out the {r}{t}"),
}

# What somebody notices about a room: the helper is expected to know what to do.
COMPLAINTS: dict[str, tuple[str, ...]] = {
    "lights.on": ("too dark", "so dark", "pitch dark"),
    "lights.brighter": ("not bright enough", "{d}too dim", "so dim"),
    "lights.dimmer": ("{d}too bright", "so bright", "far too bright"),
    "heat.up": ("{d}too cold", "so cold", "freezing", "so chilly", "not warm enough"),
    "heat.down": ("{d}too hot", "so hot", "{d}too warm", "boiling", "not cool enough"),
    "music.louder": ("too quiet", "so quiet", "not loud enough"),
    "music.quieter": ("{d}too loud", "so loud", "far too loud"),
    "window.open": ("so stuffy", "too stuffy"),
    "window.close": ("so draughty", "too draughty"),
}
COMPLAINT_FORMS = ("{o}the {r} is %s", "{o}it is %s in the {r}", "{o}it's %s in the {r}",
                   "in the {r} {o}it is %s",
                   "in the {r} {o}it's %s")

# Wishes for a state, crossed with devices: "i want the lights in the kitchen off".
STATES: dict[str, tuple[str, str]] = {
    "lights.on": ("lights", "on"), "lights.off": ("lights", "off"), "fan.on": ("fan", "on"),
    "fan.off": ("fan", "off"), "tv.on": ("tv", "on"), "tv.off": ("tv", "off"), "music.play": ("music", "on"),
    "music.stop": ("music", "off"), "blinds.open": ("blinds", "open"), "blinds.close": ("blinds", "closed"),
    "window.open": ("window", "open"), "window.close": ("window", "closed"), "door.lock": ("door", "locked"),
    "door.unlock": ("door", "unlocked"), "lights.brighter": ("lights", "{d}brighter"),
    "lights.dimmer": ("lights", "{d}dimmer"), "heat.up": ("heating", "{d}higher"),
    "heat.down": ("heating", "{d}lower"), "music.louder": ("music", "{d}louder"),
    "music.quieter": ("music", "{d}quieter"),
}
WISHES = ("i want", "i would like", "i need", "i'd like to have")

INTENTS = tuple(PHRASES)

ASKING = ("", "", "", "please ", "please ", "could you ", "can you ", "could you please ", "can you please ",
          "would you ", "would you please ", "will you ", "i want you to ", "i'd like you to ",
          "i need you to ",
          "hey ", "ok ", "hey could you ", "hey can you ", "kindly ", "go ahead and ", "just ", "colibri ",
          "hey colibri ", "colibri please ", "be so kind and ", "um ", "um please ", "well ", "now ",
          "quickly ",
          "it is time to ", "remember to ", "don't forget to ", "excuse me can you ", "let's ", "so ",
          "do me a favour and ", "i think you should ", "we should ", "you may ")
GERUND = ("would you mind ", "do you mind ", "how about ", "i would be happy about ")
NOTING = ("", "", "", "hey ", "i think ", "oh dear ", "ugh ", "um ", "well ", "sorry but ", "look ",
          "colibri ",
          "hey colibri ", "you know ", "i feel ", "i am afraid ", "honestly ", "it seems ")
WISHING = ("", "", "hey ", "please ", "um ", "well ", "ok ", "colibri ", "hey colibri ", "look ", "you know ",
           "excuse me ", "now ", "so ", "hello ", "today ")
OPENINGS = {"order": ASKING, "wish": WISHING, "remark": NOTING}
ASK_END = ("", "", "", "", " please", " please", " now", " right now", " thanks", " thank you", " for me",
           " when you can", " if you can", " if you don't mind", " will you", " ok", " right away",
           " as soon as possible", " again", " for a while", " today", " tonight", " before dinner")
NOTE_END = ("", "", "", "", " right now", " again", " today", " tonight", " for me", " don't you think",
            " can you fix that", " can you help", " please help", " please do something",
            " can you change that")


@dataclass(frozen=True)
class Template:
    """One sentence pattern of one intent; `stem` names the words it shares with its sisters."""

    intent: str
    pattern: str
    stem: str
    mood: str = "order"         # "order", "wish" or "remark": which openings and endings fit


@dataclass(frozen=True)
class Command:
    """A spoken command and what it means."""

    words: str
    intent: str
    room: str
    template: Template

    @property
    def answer(self) -> str:
        """The JSON the model has to write."""
        return json.dumps({"intent": self.intent, "room": self.room}, separators=(",", ":"))


def _placed(phrase: str) -> list[str]:
    """Every way to place the room around the device of a phrase."""
    before, device, after = re.fullmatch(r"(.*)\[(\w+)\](.*)", phrase).groups()   # type: ignore[union-attr]
    slot, link = "{%s}" % device, "to" if device == "door" else "in"
    found = [f"{{o}}{before}the {{r}} {slot}{after}", f"{{o}}{before}the {slot} {link} the {{r}}{after}",
             f"{{o}}{before}the {slot}{after} {link} the {{r}}",
             f"in the {{r}} {{o}}{before}the {slot}{after}"]
    if device == "door" and after:
        del found[2]                # nobody says "make sure the door is locked to the kitchen"
    return list(dict.fromkeys(found))


@cache
def templates() -> tuple[Template, ...]:
    """All templates, in a fixed order."""
    found: list[Template] = []
    for intent in INTENTS:
        for phrase in PHRASES[intent]:
            found += [Template(intent, pattern, phrase) for pattern in _placed(phrase)]
        found += [Template(intent, "{o}" + order, "order") for order in ORDERS.get(intent, ())]
        device, state = STATES[intent]
        for wish in WISHES:
            found += [Template(intent, pattern, f"wish {state}", "wish")
                      for pattern in _placed(f"{wish} [{device}] {state}")]
        for complaint in COMPLAINTS.get(intent, ()):
            found += [Template(intent, form % complaint, complaint, "remark") for form in COMPLAINT_FORMS]
    return tuple(found)


def gerund(phrase: str) -> str:
    """The phrase with its first verb in the -ing form: "close the door" -> "closing the door"."""
    verb, rest = phrase.split(" ", 1)
    if verb in ("put", "shut", "stop", "set", "let", "dim"):
        verb += verb[-1]
    elif verb.endswith("e"):
        verb = verb[:-1]
    return f"{verb}ing {rest}"


def say(template: Template, room: str, dice: Dice) -> Command:
    """Speak a template: fill every slot."""
    body = template.pattern.replace("{d}", dice.pick(DEGREE_BEFORE)).replace("{t}", dice.pick(DEGREE_AFTER))
    body = body.replace("{r}", dice.pick(ROOMS[room]))
    for device, names in DEVICES.items():
        body = body.replace("{%s}" % device, dice.pick(names))
    head, rest = body.split("{o}")
    if template.mood == "order" and dice.chance(0.08):
        opening, rest = dice.pick(GERUND), gerund(rest)
    else:
        opening = dice.pick(OPENINGS[template.mood])
    end = dice.pick(NOTE_END if template.mood == "remark" else ASK_END)
    return Command(head + opening + rest + end, template.intent, room, template)


def matcher(pattern: str) -> re.Pattern[str]:
    """A regular expression that finds any spoken form of the pattern inside a lower-case sentence."""
    def one_of(words: tuple[str, ...]) -> str:
        return "(?:" + "|".join(re.escape(word) for word in sorted(set(words), key=len, reverse=True)) + ")"

    head, rest = pattern.split("{o}")
    verb = rest.split(" ", 1)[0]
    slots = {"{r}": one_of(tuple(w for words in ROOMS.values() for w in words)), "{d}": one_of(DEGREE_BEFORE),
             "{t}": one_of(DEGREE_AFTER), **{"{%s}" % name: one_of(words) for name, words in DEVICES.items()}}

    def fill(text: str) -> str:
        parts = re.split(r"(\{\w+\})", text)
        return "".join(slots.get(part, re.escape(part)) for part in parts)

    starts = f"(?:{fill(rest)}|{fill(gerund(rest))})" if verb.isalpha() and " " in rest else fill(rest)
    middle = one_of(ASKING + GERUND + NOTING + WISHING) if head else ""
    return re.compile(rf"\b{fill(head)}{middle}{starts}\b")


def command_prompt(words: str) -> str:
    """What the model is given. No space at the end: the answer's first token carries it."""
    return f"Command: {words}. Intent:"
