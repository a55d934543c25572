"""Quantiles of any number of values from a small table of counts.

Each value is counted in a bucket, and buckets grow with the values, so a bucket's middle is off by the same share
everywhere. Counts of several tables can be added; quantiles cannot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


class Buckets:
    """Bucket 0 holds what is below ``least``, bucket n ``least * growth**(n - 1)`` up to ``least * growth**n``.

    :param growth: how much wider each bucket is than the one before; its middle is off by half of that at most
    :param least: values below this are not told apart
    """

    def __init__(self, growth: float, least: float) -> None:
        self.growth = growth
        self.least = least
        self._log = math.log(growth)

    def index(self, value: float) -> int:
        """The bucket of a value."""
        return 0 if value < self.least else 1 + math.floor(math.log(value / self.least) / self._log)

    def middle(self, index: int) -> float:
        """The value that stands for a bucket."""
        return self.least / 2 if index <= 0 else self.least * self.growth ** (index - 0.5)

    def quantile(self, counts: Mapping[int, int], share: float) -> float:
        """The value that ``share`` of all values do not exceed, above 0 to 1; 0.0 if there are no values.

        :param counts: how many values are in each bucket
        """
        total = sum(counts.values())
        missing = max(1, math.ceil(share * total))
        for index in sorted(counts):
            missing -= counts[index]
            if missing <= 0:
                return self.middle(index)
        return 0.0
