"""How long something is going to take, from how long it took."""

from __future__ import annotations

# As TCP estimates its round trips: RFC 6298, 2.2 and 2.3.
_GAIN = 1 / 8  # of a new sample in the mean
_SPREAD_GAIN = 1 / 4  # of its distance in the mean deviation
_SPREADS = 4  # deviations that an estimate leaves above the mean
_FADING = 0.97  # of the estimate that is left each time it kept something from being tried


class ExpectedCost:
    """A moving estimate in seconds: the mean and four mean deviations. Nothing is expected before the first
    sample, and an estimate that is never put to the test fades, so that what was slow once is tried again."""

    def __init__(self) -> None:
        self._mean: float | None = None
        self._spread = 0.0

    @property
    def seconds(self) -> float:
        return 0.0 if self._mean is None else self._mean + _SPREADS * self._spread

    def took(self, seconds: float) -> None:
        if self._mean is None:
            self._mean, self._spread = seconds, seconds / 2
            return
        self._spread += _SPREAD_GAIN * (abs(seconds - self._mean) - self._spread)
        self._mean += _GAIN * (seconds - self._mean)

    def kept_away(self) -> None:
        """Something was not tried because of the estimate."""
        if self._mean is not None:
            self._mean *= _FADING
            self._spread *= _FADING
