"""The master of a pipeline's own session; the session itself is in ``test_whole``."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from gnsq_like.spark.pipeline.session import with_attempts


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[ 8 ]", "local[8,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
        ("yarn", "yarn"),
    ],
)
def test_a_task_that_fails_is_tried_again_on_every_master(given: str, wanted: str) -> None:
    assert with_attempts(given) == wanted
