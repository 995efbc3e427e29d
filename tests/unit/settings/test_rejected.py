"""Every file under tests/rejected is refused with the message on its first line, and no other fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from memory_extproc.errors import ConfigurationError
from memory_extproc.settings import load

REJECTED = sorted((Path(__file__).parents[2] / "rejected").glob("*.yaml"))


@pytest.mark.parametrize("path", REJECTED, ids=lambda path: path.stem)
def test_a_configuration_that_cannot_be_meant_is_refused_with_its_fault(path: Path) -> None:
    expected = path.read_text().partition("\n")[0].removeprefix("# ")
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})
    (fault,) = caught.value.faults
    assert expected in fault
    assert "hunter" not in fault


def test_there_are_rejected_configurations() -> None:
    assert len(REJECTED) > 50
