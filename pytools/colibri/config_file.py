"""A config.json whose fields are asked for one by one, so that what nobody asked for is refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from .errors import ConvertError
from .rope import decimal

MISSING = object()


def shown(value: Any) -> str:
    """A JSON value in a sentence, short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value) if isinstance(value, (int, Decimal)) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _leaves(document: dict[str, Any], spelling: Mapping[str, str], path: str = "") -> Iterator[tuple[str, Any]]:
    """Fields with their path; only objects that hold spelled fields are opened."""
    for name, value in document.items():
        written = path + name
        if not any(key.startswith(written + ".") for key in spelling):
            yield written, value
        elif isinstance(value, dict):
            yield from _leaves(value, spelling, written + ".")
        elif value is not None:
            yield written, value


def _respelled(document: dict[str, Any], spelling: Mapping[str, str], subject: str) -> dict[str, Any]:
    """Fields by their usual names; two spellings of one field must say the same."""
    found: dict[str, Any] = {}
    for written, value in _leaves(document, spelling):
        usual = spelling.get(written, written)
        if found.setdefault(usual, value) != value:
            raise ConvertError(
                f"{subject}: field {written!r} says {shown(value)} where another field says {shown(found[usual])}; "
                f"expected one {usual}"
            )
    return found


class Config:
    """The fields of one config.json, and which of them were asked for.

    `spelling`: how a family writes fields that have a usual name, with dots where they stand in an object of their
    own; `inside`: what stands before every name in a sentence, where the document is a part of a config.json.
    """

    def __init__(
        self, document: Any, subject: str, spelling: Mapping[str, str] | None = None, inside: str = ""
    ) -> None:
        if not isinstance(document, dict):
            raise ConvertError(f"{subject}: is not a JSON object; expected the config of a model")
        self.subject, self._inside = subject, inside
        self._fields = _respelled(document, spelling or {}, subject)
        self._written = {usual: written for written, usual in (spelling or {}).items()}
        self._used: set[str] = set()

    def written(self, name: str) -> str:
        """What the file calls a field."""
        return self._inside + self._written.get(name, name)

    def refuse(self, name: str, expected: str) -> ConvertError:
        """The error for a field with a value that cannot be used."""
        return ConvertError(
            f"{self.subject}: field {self.written(name)!r} is {shown(self._fields.get(name))}; expected {expected}"
        )

    def take(self, name: str, default: Any = MISSING, null: Any = MISSING) -> Any:
        """A value: `default` if the field is absent, `null` (or else the default) if it is null."""
        self._used.add(name)
        value = self._fields.get(name)
        if value is not None:
            return value
        fallback = null if name in self._fields and null is not MISSING else default
        if fallback is MISSING:
            raise ConvertError(
                f"{self.subject}: field {self.written(name)!r} is missing; the model cannot be described without it"
            )
        return fallback

    def first(self, names: Iterable[str]) -> str:
        """The first of several spellings that is there (else the first one)."""
        listed = list(names)
        self._used.update(listed)
        return next((name for name in listed if self._fields.get(name) is not None), listed[0])

    def integer(self, name: str, default: Any = MISSING, low: int = 1, null: Any = MISSING) -> Any:
        """A whole number of 32 bits."""
        value = self.take(name, default, null)
        if self._fields.get(name) is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not low <= value < 1 << 32
        ):
            raise self.refuse(name, f"a whole number from {low} on")
        return value

    def uniform(self, name: str, default: Any = MISSING, low: int = 1) -> int:
        """A whole number, or a list that says the same for every layer."""
        value = self.take(name, default)
        numbers = value if isinstance(value, list) and value else [value]
        same = all(type(number) is int and number == numbers[0] for number in numbers)
        if not same or not low <= numbers[0] < 1 << 32:
            raise self.refuse(name, f"a whole number from {low} on, the same for every layer")
        return int(numbers[0])

    def positive(self, name: str, default: Any = MISSING) -> Decimal:
        """A number above zero."""
        value = self.take(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)) or not value > 0:
            raise self.refuse(name, "a number above 0")
        return decimal(value)

    def boolean(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def items(self, name: str, kind: type) -> list[Any] | None:
        """A list of one type, None if it is not there."""
        value = self.take(name, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise self.refuse(name, f"a list of {kind.__name__}")
        return value

    def fix(self, name: str, value: Any) -> None:
        """A field that may be there with one value only."""
        self._used.add(name)
        found = self._fields.get(name, value)
        if found != value or isinstance(found, bool) != isinstance(value, bool):
            raise self.refuse(name, f"{shown(value)}: this version runs nothing else")

    def finish(self, ignored: frozenset[str], inner: frozenset[str] = frozenset()) -> None:
        """Refuse what nobody understood. inner: further names without effect inside of opened objects."""

        def harmless(name: str) -> bool:
            path, _, last = name.rpartition(".")
            return name in ignored or (path != "" and last in ignored | inner)

        unknown = sorted(name for name in set(self._fields) - self._used if not harmless(name))
        if unknown:
            raise ConvertError(
                f"{self.subject}: field {self.written(unknown[0])!r} ({shown(self._fields[unknown[0]])}) is not "
                "known; a newer Colibri may read it"
            )
