"""Parts of dashboards: panels with a unit and a description, and the PromQL used most."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What a panel is narrowed to: the sidecars, and the Envoys before them. Where Prometheus gives no namespace and no pod
# (outside of Kubernetes), "All" is `.*` and so takes series without them.
OURS = 'job=~"$job", namespace=~"$namespace", pod=~"$pod"'
ENVOYS = 'job=~"$envoy"'


class OrZero(str):
    """An expression that gives 0 where *counted* has no series yet."""

    __slots__ = ("counted",)
    counted: str


@dataclass(frozen=True)
class Query:
    expression: str
    legend: str = ""

    @property
    def promql(self) -> str:
        """The expression; where it may count nothing yet, a zero whose legend says so, and only until then."""
        labels = re.findall(r"{{(\w+)}}", self.legend)
        if not isinstance(self.expression, OrZero) or not labels:
            return self.expression
        zero = f'label_replace(vector(0), "{labels[0]}", "nothing yet", "", "")'
        for other in labels[1:]:
            zero = f'label_replace({zero}, "{other}", "-", "", "")'
        return f"({self.expression.counted}) or ({zero} unless on () ({self.expression.counted}))"


@dataclass(frozen=True)
class Panel:
    title: str
    tells: str
    unit: str
    queries: tuple[Query, ...]
    small: bool = False
    stacked: bool = False
    heatmap: bool = False
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


def or_none(expression: str) -> OrZero:
    """0 where nothing was ever counted: an empty panel would look like a broken one."""
    found = OrZero(f"({expression}) or vector(0)")
    found.counted = expression
    return found


def buckets(metric: str, more: str = "") -> tuple[Query, ...]:
    """For a heatmap: how many fell between one bound and the next."""
    labels = ", ".join(each for each in (OURS, more) if each)
    return (Query(f"sum by (le) (increase({metric}_bucket{{{labels}}}[$__rate_interval]))", "{{le}}"),)


def percentiles(metric: str, more: str = "") -> tuple[Query, ...]:
    return tuple(Query(quantile(share, metric, more=more), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99))
