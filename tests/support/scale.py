"""How many examples a property gets: so many times what the hypothesis profile says (100 by default)."""

import pytest
from hypothesis import HealthCheck, settings

#: For modules whose properties compute for most of the usual limit where the machine is busy with other things.
LONG = pytest.mark.timeout(900)


def examples(times: float) -> settings:
    """Settings with `times` the examples of the loaded profile: GNSQ_LIKE_HYPOTHESIS raises them all."""
    profile = settings.default
    assert profile is not None
    return settings(
        max_examples=max(1, int(profile.max_examples * times)),
        suppress_health_check=[HealthCheck.too_slow],
    )
