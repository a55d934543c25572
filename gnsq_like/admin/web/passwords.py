"""The users of the password file: hashes, sessions, and limits of tries.

A hash costs 100 ms of CPU time, so hashes are computed outside the core's thread, one at a time; tries are limited for
each address and each user, and so is the number of requests that wait. A right password is remembered, by a cookie for
browsers and by a digest for programs that send it with every request, and costs no second hash.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
from collections.abc import Callable

from werkzeug.security import check_password_hash, generate_password_hash

from gnsq_like.admin.core import Core
from gnsq_like.errors import InvalidOption
from gnsq_like.runtime.native import wall_clock

logger = logging.getLogger(__name__)

#: Requests that may wait for a hash.
_MOST_WAITING = 20
#: Checked passwords that are remembered.
_MOST_REMEMBERED = 1024
#: Tries that an address, or a user, has at once; and the seconds in which it gets another one. A user has more, so
#: that no single address can keep a user out.
TRIES = {"address": (10, 6.0), "user": (30, 2.0)}
#: Addresses and users whose tries are counted; the oldest are forgotten.
_MOST_COUNTED = 10_000
#: The cookie of a user that is logged in, and the seconds for which it is good.
SESSION_COOKIE = "nsq_admin_session"
SESSION_SECONDS = 12 * 3600

_NOBODY = generate_password_hash("nobody has this password")


class TooManyTries(Exception):
    """Too many tries: the password was not checked.

    :param seconds: until the next try is allowed
    :param is_first: whether the previous try was checked
    """

    def __init__(self, seconds: float, is_first: bool) -> None:
        super().__init__(seconds)
        self.seconds = seconds
        self.is_first = is_first


class Tries:
    """Counts tries by address and by user, as TRIES allows. Pure."""

    def __init__(self) -> None:
        #: When each address or user has all tries again.
        self._full_at: dict[tuple[str, str], float] = {}
        #: Those whose last try was refused.
        self._without: set[tuple[str, str]] = set()

    def take(self, address: str, user: str, now: float) -> None:
        """Use up a try of both.

        :raises TooManyTries: if one of them has none left
        """
        waits = {}
        for key in (("address", address), ("user", user)):
            most, seconds = TRIES[key[0]]
            self._full_at[key] = max(self._full_at.pop(key, now), now) + seconds
            waits[key] = self._full_at[key] - now - most * seconds
        while len(self._full_at) > _MOST_COUNTED:
            oldest = next(iter(self._full_at))
            del self._full_at[oldest]
            self._without.discard(oldest)
        without = {key for key, wait in waits.items() if wait > 0}
        is_first = not without & self._without
        self._without = (self._without - waits.keys()) | without
        if without:
            self.give_back(address, user)
            raise TooManyTries(max(waits.values()), is_first)

    def give_back(self, address: str, user: str) -> None:
        """Undo :meth:`take`: the password was right, or was not checked."""
        for key in (("address", address), ("user", user)):
            if key in self._full_at:
                self._full_at[key] -= TRIES[key[0]][1]


class Passwords:
    """The users that may log in, by their hashes.

    :param path: the password file
    :param core: computes hashes
    :param clock: the time of day

    The file is read again when it has changed. If it cannot be read any more, that is logged, and the old users stay.

    :raises InvalidOption: if the file cannot be read
    """

    def __init__(self, path: str, core: Core, clock: Callable[[], float] = wall_clock) -> None:
        self._path = path
        self._version = _version(path)
        self._known = read_passwords(path)
        self._core = core
        self._clock = clock
        self._tries = Tries()
        self._waiting = 0
        #: Digests of right credentials, by a key that only this process has.
        self._right: set[bytes] = set()
        self._key = os.urandom(32)

    def is_right(self, user: str, password: str, address: str) -> bool:
        """Whether this is the user's password. May switch, or block.

        :param address: of the client
        :raises TooManyTries: if there were too many tries
        """
        hashes = self._hashes()
        digest = self._digest("password", f"{user}:{password}:{hashes.get(user)}")
        if digest in self._right:
            return True
        self._tries.take(address, user, self._clock())
        if self._waiting >= _MOST_WAITING:
            self._tries.give_back(address, user)
            raise TooManyTries(1.0, is_first=True)
        self._waiting += 1
        try:
            # An unknown user takes the same time.
            credentials = hashes.get(user, _NOBODY), password
            is_right = self._core.run(self._core.compute, _is_password, credentials)
        finally:
            self._waiting -= 1
        if not is_right or user not in hashes:
            return False
        self._tries.give_back(address, user)
        if len(self._right) >= _MOST_REMEMBERED:
            self._right.clear()
        self._right.add(digest)
        return True

    def session(self, user: str) -> str:
        """A cookie that identifies this user for SESSION_SECONDS."""
        name = f"{self._clock() + SESSION_SECONDS:.0f}:{user}"
        return base64.urlsafe_b64encode(self._of_session(name, user) + name.encode()).decode()

    def user_of(self, session: str) -> str | None:
        """The user of a cookie; None if it is not from this process, too old, or older than the password."""
        try:
            found = base64.urlsafe_b64decode(session.encode())
            digest, name = found[:32], found[32:].decode()
        except ValueError:
            return None
        until, _, user = name.partition(":")
        if not session or not hmac.compare_digest(digest, self._of_session(name, user)):
            return None
        return user if self._clock() < int(until) else None

    def _of_session(self, name: str, user: str) -> bytes:
        return self._digest("session", f"{name}:{self._hashes().get(user)}")

    def _hashes(self) -> dict[str, str]:
        """By user, as the file has them now."""
        version = _version(self._path)
        if version != self._version:
            self._version = version
            try:
                self._known = read_passwords(self._path)
            except InvalidOption as exc:
                logger.error("the users stay as they were: %s", exc)
        return self._known

    def _digest(self, kind: str, text: str) -> bytes:
        return hmac.new(self._key, f"{kind} {text}".encode(), hashlib.sha256).digest()


def _version(path: str) -> object:
    """Something that changes with the file; None if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _is_password(credentials: tuple[str, str]) -> bool:
    return check_password_hash(*credentials)


def read_passwords(path: str) -> dict[str, str]:
    """The hashes in a password file, by user: a line is ``user:hash``; # begins a comment.

    :raises InvalidOption: if the file cannot be read, or has a malformed line
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidOption("password_file", path, f"it cannot be read: {exc}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, _, hashed = line.strip().partition(":")
        if not user or not hashed.startswith(("scrypt:", "pbkdf2:")):
            raise InvalidOption(
                "password_file", path, f"line {number} is not user:hash as gnsq-like admin-password writes"
            )
        found[user] = hashed
    return found


def password_line(user: str, password: str) -> str:
    """A line for the password file. Raises InvalidOption for a name that cannot be written there."""
    if not user or ":" in user or "#" in user or not user.isprintable() or user != user.strip():
        raise InvalidOption("user", user, "it must be printable, without : and #")
    return f"{user}:{generate_password_hash(password)}"
