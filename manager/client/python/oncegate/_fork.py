"""What must not be shared by a process and its forks."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    def forked(self) -> None:
        """Called in the new process, which has one thread."""


_all: "weakref.WeakSet[Forked]" = weakref.WeakSet()


def _after_fork() -> None:
    for o in list(_all):
        o.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def call_after_fork(o: Forked) -> None:
    """Call o.forked in each new process while o exists."""
    _all.add(o)
