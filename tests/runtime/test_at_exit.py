"""What is ended at the end of a program, and in which order."""

from __future__ import annotations

from tests.support.scripts import run_script


def test_all_begin_before_one_is_waited_for_and_before_earlier_hooks():
    lines = run_script(
        """
        import atexit
        from gnsq_like.runtime import at_exit

        class Thing:
            def __init__(self, name):
                self.name = name

            def begin(self, timeout):
                print("begin", self.name, timeout > 0)
                return self.name != "stopped"

            def wait(self, timeout):
                print("wait", self.name, timeout > 0)

        atexit.register(print, "first")
        things = [Thing("one"), Thing("stopped"), Thing("two")]
        for thing in [Thing("gone"), *things]:
            at_exit.register(thing, Thing.begin, Thing.wait)
            del thing
        atexit.register(print, "last")
        """
    )
    begun = ["begin one True", "begin stopped True", "begin two True"]
    assert lines[0] == "last"
    assert sorted(lines[1:4]) == begun
    assert sorted(lines[4:6]) == ["wait one True", "wait two True"]
    assert lines[6:] == ["first"]
