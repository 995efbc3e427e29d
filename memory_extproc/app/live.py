"""The configuration in effect, and who is told when it changes."""

from __future__ import annotations

from collections.abc import Callable

from memory_extproc.settings import Settings
from memory_extproc.settings.reloading import Change, Fixed, merged

Applies = Callable[[Settings], None]  # swaps frozen values, and so neither fails nor waits


class Live:
    """Changed on the event loop, between two events: nobody sees half a change."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.waiting: tuple[str, ...] = ()  # keys whose new values need a restart
        self._fixed = Fixed.by(settings)
        self._follow: list[Applies] = []

    def follow(self, applies: Applies) -> None:
        self._follow.append(applies)

    def merged(self, wanted: Settings) -> Change:
        """ConfigurationError when *wanted* does not go together with what cannot change before a restart."""
        return merged(self.settings, wanted, self._fixed)

    def use(self, change: Change) -> None:
        self.settings, self.waiting = change.settings, change.waiting
        for applies in self._follow:
            applies(change.settings)
