"""How much tests compute, by the profile in GNSQ_LIKE_HYPOTHESIS.

quick     the default: 30 examples, a fifth of what `share_of` is asked for
full      hypothesis's usual 100 or what `examples` is asked for, all of `share_of`; ``make test-properties`` runs it
thorough  fifty times as many examples, other ones in each run, and the rare cases of web servers
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("GNSQ_LIKE_HYPOTHESIS", "quick")

#: For modules whose properties compute for most of the usual limit where the machine is busy with other things.
LONG = pytest.mark.timeout(900)
# The first two repeat the same examples in every run, so that a red run is red again; the last one searches. None
# fails because it is slow: the first text alone, for which hypothesis computes tables, takes a minute on a machine that
# does much else.
_SLOW: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=30, derandomize=True, **_SLOW)
settings.register_profile("full", derandomize=True, **_SLOW)
settings.register_profile("thorough", max_examples=5000, **_SLOW)
settings.load_profile(PROFILE)


def share_of(count: int) -> int:
    """This many, or a fifth of it in the quick profile."""
    return max(1, count // 5) if PROFILE == "quick" else count


def examples(times: float) -> settings:
    """Settings with `times` the examples of the profile, but for the quick one."""
    profile = settings.default
    assert profile is not None
    return settings(max_examples=int(profile.max_examples * (1 if PROFILE == "quick" else times)))
