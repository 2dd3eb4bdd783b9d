"""Role markers: the plain form of a chat template, for hosts without a template engine.

Where a template only puts fixed texts around the messages, those texts are found by rendering it with marked
messages, and a longer chat must then come out the same both ways. Where it does more, there are no markers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .chat import render
from .errors import ColibriError

NAMES = (
    "BEGIN",
    "SYSTEM_BEFORE",
    "SYSTEM_AFTER",
    "USER_BEFORE",
    "USER_AFTER",
    "ASSISTANT_BEFORE",
    "ASSISTANT_AFTER",
)
_ROLES = {"s": "system", "u": "user", "a": "assistant"}


class _NoMarkers(Exception):
    """The template is not of the plain form."""


def _chat(roles: str) -> list[dict[str, str]]:
    return [{"role": _ROLES[role], "content": f"Qx{number}y{role}Z"} for number, role in enumerate(roles)]


def _split(template: str, roles: str, tokens: Mapping[str, str], reply: bool) -> list[str]:
    """What stands before, between and behind the messages."""
    rest, out = render(template, _chat(roles), tokens, "chat_template", reply), []
    for message in _chat(roles):
        before, found, rest = rest.partition(message["content"])
        if not found:
            raise _NoMarkers
        out.append(before)
    return [*out, rest]


def _behind(text: str, ending: str) -> str:
    if not text.endswith(ending):
        raise _NoMarkers
    return text[: len(text) - len(ending)]


def _after(text: str, beginning: str) -> str:
    if not text.startswith(beginning):
        raise _NoMarkers
    return text[len(beginning) :]


def _find(template: str, tokens: Mapping[str, str]) -> dict[str, str]:
    first, user_after = _split(template, "u", tokens, reply=False)
    _, asked = _split(template, "u", tokens, reply=True)
    _, _, between, _ = _split(template, "uau", tokens, reply=True)
    _, _, assistant_after = _split(template, "ua", tokens, reply=False)
    system_before, system_after, _ = _split(template, "su", tokens, reply=True)
    user_before = _after(between, assistant_after)
    return {
        "BEGIN": _behind(first, user_before),
        "SYSTEM_BEFORE": system_before,
        "SYSTEM_AFTER": _behind(system_after, user_before),
        "USER_BEFORE": user_before,
        "USER_AFTER": user_after,
        "ASSISTANT_BEFORE": _after(asked, user_after),
        "ASSISTANT_AFTER": assistant_after,
    }


def compose(markers: Mapping[str, str], messages: Sequence[Mapping[str, str]]) -> str:
    """A prompt by markers alone: what the template gives for the same messages."""
    begins = "" if messages[0]["role"] == "system" else markers["BEGIN"]
    around = (
        (markers[m["role"].upper() + "_BEFORE"], m["content"], markers[m["role"].upper() + "_AFTER"])
        for m in messages
    )
    return begins + "".join("".join(parts) for parts in around) + markers["ASSISTANT_BEFORE"]


def role_markers(template: str, tokens: Mapping[str, str]) -> dict[str, str]:
    """The markers by name; empty where the template has no plain form. tokens: bos_token and so on."""
    try:
        markers = _find(template, tokens)
        for roles in ("uauau", "suauau", "su", "u"):
            if compose(markers, _chat(roles)) != render(template, _chat(roles), tokens, "chat_template"):
                return {}
        return markers
    except (_NoMarkers, ColibriError):
        return {}
