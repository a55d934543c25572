"""nsqlookupd's registry."""

from gnsq_like.server.nsqlookupd.registry import Producer, Registry


def test_keys_stay_and_producers_are_hidden_or_gone() -> None:
    registry = Registry(inactive_timeout=300, tombstone_lifetime=45)
    one, two = (Producer(f"ip:{n}", f"h{n}", f"b{n}", 1, 2, "1.3.0", "z", "r", last_update=1000.0) for n in (1, 2))
    for producer in (one, two):
        registry.connect(producer)
        registry.register(producer, "t", "c")
    assert registry.lookup("t", 1300) == [one, two]
    assert registry.lookup("t", 1301) == []
    two.last_update = 1200.0
    assert registry.lookup("t", 1301) == [two]
    registry.tombstone("t", "b2:2", 1301)
    assert (registry.lookup("t", 1345.9), registry.lookup("t", 1346)) == ([], [two])
    assert (registry.is_tombstoned(two, "t", 1345.9), registry.is_tombstoned(two, "t", 1346)) == (True, False)
    for producer in (one, two):
        registry.disconnect(producer)
    assert (registry.lookup("t", 1301), registry.channels_of("t"), registry.nodes(1301)) == ([], ["c"], [])
