"""What a dashboard is made of: panels with a unit and with what they tell, and PromQL in the words used most."""

from __future__ import annotations

from dataclasses import dataclass

# What a panel is narrowed to: the sidecars, and the Envoys before them.
OURS = 'job=~"$job"'
ENVOYS = 'job=~"$envoy"'


@dataclass(frozen=True)
class Query:
    expression: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    title: str
    tells: str
    unit: str
    queries: tuple[Query, ...]
    small: bool = False
    stacked: bool = False
    warn_above: float | None = None
    warn_below: float | None = None


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def rate(metric: str, by: str = "", more: str = "", of: str = OURS) -> str:
    labels = ", ".join(each for each in (of, more) if each)
    total = f"rate({metric}{{{labels}}}[$__rate_interval])"
    return f"sum by ({by}) ({total})" if by else f"sum({total})"


def quantile(share: float, metric: str, by: str = "", more: str = "") -> str:
    labels = ", ".join(each for each in (OURS, more) if each)
    kept = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({kept}) (rate({metric}_bucket{{{labels}}}[$__rate_interval])))"


def mean(metric: str, by: str = "") -> str:
    return f"{rate(f'{metric}_sum', by)} / {rate(f'{metric}_count', by)}"


def gauge(metric: str, function: str = "sum") -> str:
    return f"{function}({metric}{{{OURS}}})"


def or_none(expression: str) -> str:
    """0 where nothing was ever counted: an empty panel would look like a broken one."""
    return f"({expression}) or vector(0)"


def percentiles(metric: str, more: str = "") -> tuple[Query, ...]:
    return tuple(Query(quantile(share, metric, more=more), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99))
