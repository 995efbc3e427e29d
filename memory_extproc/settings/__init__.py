"""The whole configuration: parsed once, checked whole, frozen; each default stands in one place."""

from memory_extproc.settings.loading import load
from memory_extproc.settings.root import CurrentSettings, Settings

__all__ = ["CurrentSettings", "Settings", "load"]
