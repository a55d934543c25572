"""Names that are loaded at first use."""

from __future__ import annotations

from tests.support.scripts import run_script


def test_dir_lists_what_is_public_without_loading_it_and_nothing_private() -> None:
    lines = run_script(
        """
        import gnsq_like
        names = dir(gnsq_like)
        print(set(gnsq_like.__all__) <= set(names), "__doc__" in names, "_lazy" in names, "Reader" in vars(gnsq_like))
        """
    )
    assert lines == ["True True False False"]
