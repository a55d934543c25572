"""Quantiles of any number of values, from a small table of counts.

Each value is counted in a bucket. Bucket widths grow with the values, so the relative error of a bucket's middle is the
same everywhere. Counts of several tables can be added; quantiles cannot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


class Buckets:
    """Bucket 0 holds values below ``least``, bucket n those from ``least * growth**(n - 1)`` to ``least * growth**n``.

    :param growth: ratio of the widths of neighbouring buckets; a middle is off by at most about ``(growth - 1) / 2``
    :param least: values below this are not distinguished
    """

    def __init__(self, growth: float, least: float) -> None:
        self.growth = growth
        self.least = least
        self._log = math.log(growth)

    def index(self, value: float) -> int:
        """The bucket of a value."""
        return 0 if value < self.least else 1 + math.floor(math.log(value / self.least) / self._log)

    def middle(self, index: int) -> float:
        """The value that represents a bucket."""
        return self.least / 2 if index <= 0 else self.least * self.growth ** (index - 0.5)

    def quantile(self, counts: Mapping[int, int], share: float) -> float:
        """The value that ``share`` of all values do not exceed; 0.0 if there are no values.

        :param counts: the number of values in each bucket
        :param share: above 0, at most 1
        """
        total = sum(counts.values())
        missing = max(1, math.ceil(share * total))
        for index in sorted(counts):
            missing -= counts[index]
            if missing <= 0:
                return self.middle(index)
        return 0.0
