"""Dealing out whole numbers: equal shares below caps, and rising to a common level.

For the RDY plan (`rdy`): a limit is dealt to topics, the part of a topic to its connections, and room to those that
have least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def deal(amount: int, caps: Sequence[int]) -> list[int]:
    """Distribute `amount` in equal shares, none above its cap; the first ones get the remainder."""
    shares = [0] * len(caps)
    by_cap = sorted(range(len(caps)), key=caps.__getitem__)
    for place, index in enumerate(by_cap):
        fair, remainder = divmod(amount, len(caps) - place)
        if caps[index] > fair:
            for rank, other in enumerate(sorted(by_cap[place:])):
                shares[other] = fair + (rank < remainder)
            break
        shares[index] = caps[index]
        amount -= caps[index]
    return shares


def lift(room: int, held: Sequence[int], wants: Sequence[int], priority: Callable[[int], Any]) -> list[int]:
    """Distribute the room so that the lowest rise first, each by what it wants at most.

    `priority` maps an index to its place among equals that compete for the remainder, the smallest first.
    """
    room = max(0, room)
    if sum(wants) <= room:
        return list(wants)
    low, high = 0, max(held) + room
    while low < high:
        level = (low + high + 1) // 2
        if sum(_gifts(level, held, wants)) <= room:
            low = level
        else:
            high = level - 1
    gifts = _gifts(low, held, wants)
    room -= sum(gifts)
    next_up = [index for index, want in enumerate(wants) if gifts[index] < want and held[index] <= low]
    next_up.sort(key=priority)
    for index in next_up[:room]:
        gifts[index] += 1
    return gifts


def _gifts(level: int, held: Sequence[int], wants: Sequence[int]) -> list[int]:
    """What each needs to reach `level`."""
    return [min(want, max(0, level - have)) for have, want in zip(held, wants, strict=True)]


def deal_to_groups(amount: int, groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Distribute `amount` among groups, level as far as possible, and in each group among its members.

    Each member gets 1 at least; there must be so much. So a group of many members may have more than a level share.

    :param groups: the caps of each group's members; the first groups get the remainder
    """
    least = [len(caps) for caps in groups]
    wants = [sum(caps) - len(caps) for caps in groups]
    gifts = lift(amount - sum(least), least, wants, lambda place: place)
    return [deal(own + gift, caps) for own, gift, caps in zip(least, gifts, groups, strict=True)]
