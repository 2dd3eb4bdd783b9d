"""The integer router at conversion: where it is defined, and its spans from router logits of the model itself.

When the weights are in place the file is run in the core on a text, and every layer's span becomes the least
one that holds the widest distance of logits that a weight was made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from . import engine
from .description import Layer, Model
from .errors import ConvertError
from .library import constants
from .text import encode

TOKENS, BATCH, CHARACTERS = 256, 16, 8192  # of the text, and rows at a time
# A text beyond the calibration is at most e^-8 = 0.03 % off in a weight under the least span. Under the most, what is
# further away rounds to nothing in Q16.16, so a wider span would only coarsen the steps.
LEAST, MOST = 8, 16
TEXT = """The harbour was quiet that morning. Three boats lay side by side, and the oldest of them, painted green
long ago, carried nobody's name. "We leave at seven," said Anna, counting the ropes twice. What does it cost to
build a bridge of 412 metres across a river 38 metres deep? Steel: 1,250 t; concrete: 9,800 m3; time: 26 months.
def total(items):
    return sum(item.price * item.count for item in items if item.count > 0)
Water boils at 100 degrees Celsius at sea level and at about 93 on a mountain of 2,000 metres, because the air
presses less. Der Zug nach Wien ist heute pünktlich. La réunion commence à dix heures. El perro duerme bajo
la mesa.
{"name": "lamp", "room": "kitchen", "on": true, "level": 0.75}
Once upon a time there was a small bird who could not sing. Every evening it listened to the others, and
every evening it flew home alone. One day an old fox asked: why are you sad? Please switch off the light in the hall.
Yes, at once.
Theorem. If a and b are even, so is a + b. Proof: a = 2m and b = 2n give a + b = 2(m + n).
"""


def why_not(layer: Layer) -> str:
    """Why a MoE layer has no integer router; empty if it has one."""
    c = constants()
    ratios = {
        c.ROUTER_SOFTMAX: (c.RENORMALISE_NONE, c.RENORMALISE_SUM),
        c.ROUTER_SIGMOID: (c.RENORMALISE_NONE, c.RENORMALISE_SUM),
        c.ROUTER_LOGIT: (c.RENORMALISE_SOFTMAX,),
    }
    if layer.router_renormalise not in ratios.get(layer.router_score, ()):
        return "its weights are not ratios of exponentials, which the tables hold"
    if layer.router_bias in (c.ROUTER_BIAS_SCORE, c.ROUTER_BIAS_CHOICE):
        return (
            "it chooses by a score or logit plus a bias, and 16 fraction bits of a score do not tell its experts "
            "apart (scores of 1e-8 occur)"
        )
    if layer.router_group_score == c.GROUP_TOP_TWO:
        return "it adds the two best scores of a group, which logits cannot replace"
    if layer.router_group_score == c.GROUP_EACH or layer.router_by_token:
        return "each group, or the token, says which experts it chooses, for which no integer form is made"
    if (layer.router_eps or 0) > 1e-9 or (layer.router_sum_min or 0) > 0:
        return "what it divides by is changed by a number that 16 fraction bits do not hold"
    return ""


def integer_routers(model: Model, subject: str) -> Model:
    """The description with integer routers of the widest span, until there are weights to calibrate with."""
    if not any(layer.moe for layer in model.layers):
        raise ConvertError(f"{subject}: --router int: the model has no routed experts; leave the option out")
    for number, layer in enumerate(model.layers):
        if layer.moe and (reason := why_not(layer)):
            raise ConvertError(f"{subject}: --router int: the router of layer {number} has no integer form: {reason}; "
                               "use --router float")
    layers = [replace(layer, router_span=MOST) if layer.moe else layer for layer in model.layers]
    return replace(model, layers=layers)


def tokens_of(model: engine.Model, text: str) -> list[int]:
    """The first tokens of a text; a file without a tokenizer has ids from all over the vocabulary."""
    info = model.info()
    if not info.tokenizer_bytes:
        return [(7919 * i + 101) % info.vocab for i in range(TOKENS)]
    content = (text or TEXT)[:CHARACTERS]
    room = engine.Limits(context=16, batch=1, text_bytes=max(1024, len(content.encode())))
    with engine.Session(model, room) as session:
        return encode(session, content)[:TOKENS]


def spreads(path: Path, layers: Sequence[int], text: str = "") -> dict[int, float]:
    """The widest distance of logits by layer, of a file whose routers are integer ones."""
    model = engine.Model.open(path)
    tokens = tokens_of(model, text)
    widest = dict.fromkeys(layers, 0.0)
    with engine.Session(model, engine.Limits(context=max(1, len(tokens)), batch=BATCH)) as session:
        for first in range(0, len(tokens), BATCH):
            part = tokens[first:first + BATCH]
            session.feed(part, want="none")
            session.finish()
            for layer in layers:
                seen = (session.router_spread(layer, index) for index in range(len(part)))
                widest[layer] = max(widest[layer], *seen)
    return widest


def span_of(spread: float) -> int:
    """The least power of two that holds a spread, of those the converter uses."""
    span = LEAST
    while span < MOST and span < spread:
        span *= 2
    return span


def calibrate(path: Path, model: Model, text: str = "") -> str:
    """Set the span of every integer router of the description of a file; one sentence about it."""
    layers = [number for number, layer in enumerate(model.layers) if layer.router_span]
    found = spreads(path, layers, text)
    for number in layers:
        model.layers[number].router_span = span_of(found[number])
    spans = [model.layers[number].router_span for number in layers]
    counts = ", ".join(f"{span} in {spans.count(span)} layers" for span in sorted(set(spans), key=int))
    return f"integer router: logits up to {max(found.values()):.2f} apart, span {counts}"
