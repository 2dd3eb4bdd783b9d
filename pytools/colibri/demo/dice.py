"""Seeded choices that give the same sequence in every Python version."""
import hashlib
import random
from typing import TypeVar
from collections.abc import Sequence

T = TypeVar("T")


class Dice:
    """Draws built only on `Random.random()`, the one method whose sequence Python promises to keep."""

    def __init__(self, *seed: object) -> None:
        name = "/".join(str(part) for part in seed)
        self._random = random.Random(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))

    def below(self, limit: int) -> int:
        """An integer in 0..limit-1."""
        return int(self._random.random() * limit)

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self._random.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        """One item, each equally likely."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """A new list in random order (Fisher-Yates)."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result
