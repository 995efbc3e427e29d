"""A schedule of faults, drawn from a seed; it is written into the log of a run, from which it is read again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

ALL = -1  # every replica

# How often each kind is drawn, whether it concerns one replica (or perhaps all), and the seconds it lasts at most.
KINDS: dict[str, tuple[int, bool, float]] = {
    "kill": (5, True, 2.0),
    "stop": (4, True, 4.0),
    "rolling_restart": (2, False, 0.0),
    "redis_cut": (3, True, 4.0),
    "redis_stall": (3, True, 4.0),
    "redis_slow": (2, True, 4.0),
    "redis_kill": (2, False, 3.0),
    "redis_flush": (2, False, 0.0),
    "store_cut": (3, True, 4.0),
    "store_stall": (3, True, 4.0),
    "store_slow": (2, True, 4.0),
    "store_stop": (1, False, 4.0),
    "disk_full": (2, True, 4.0),
}
WARM_UP = 3.0  # seconds of traffic before the first fault
# Turns of a replica with a full disk are in Redis alone, so that one more fault may lose them: docs/operations.md.
ALONE = frozenset({"disk_full"})
# A replica drops its copies of turns in Redis when it leaves in order, and makes none on a full disk.
UNCOPIED = frozenset({"rolling_restart", "disk_full"})


@dataclass(frozen=True)
class Fault:
    at: float  # seconds after the beginning
    kind: str
    replica: int
    seconds: float  # how long it lasts


@dataclass(frozen=True)
class Plan:
    """All that a run depends on, but for the machine's timing."""

    seed: int
    seconds: float
    replicas: int
    faults: tuple[Fault, ...]

    def to_json(self) -> str:
        return json.dumps({"plan": asdict(self)})


def draw_plan(seed: int, seconds: float, replicas: int, kinds: Iterable[str] = KINDS) -> Plan:
    """Faults one after the other; one in four begins before the former one ends."""
    dice, chosen = Random(seed), [kind for kind in KINDS if kind in set(kinds)]
    weights = [KINDS[kind][0] for kind in chosen]
    faults: list[Fault] = []
    at = WARM_UP
    while chosen and at < seconds - 1:
        kind = dice.choices(chosen, weights)[0]
        _, single, longest = KINDS[kind]
        # A process that is killed or a disk that is full is one replica's; a link may break for all of them.
        everywhere = not single or (kind.startswith(("redis", "store")) and dice.random() < 0.4)
        replica = ALL if everywhere else dice.randrange(replicas)
        lasts = round(min(dice.uniform(0.2, 1.0) * longest, seconds - at), 2)
        if kind in ALONE and faults:
            at = max(at, faults[-1].at + faults[-1].seconds + 1.0)
        faults.append(Fault(round(at, 2), kind, replica, lasts))
        overlaps = dice.random() < 0.25 and kind not in ALONE
        at += dice.uniform(0.2, 1.0) if overlaps else lasts + dice.uniform(0.5, 3.0)
    return Plan(seed, seconds, replicas, tuple(faults))


def read_plan(log: Path) -> Plan:
    """The plan of the run that wrote *log*."""
    with log.open() as lines:
        plan = json.loads(next(lines))["plan"]
    return Plan(plan["seed"], plan["seconds"], plan["replicas"], tuple(Fault(**fault) for fault in plan["faults"]))
