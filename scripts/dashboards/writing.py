"""Panels as Grafana reads them."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as dashboard_model

from scripts.dashboards.envoy import ENVOY
from scripts.dashboards.learning import LEARNING
from scripts.dashboards.overview import OVERVIEW
from scripts.dashboards.panels import Panel, Row
from scripts.dashboards.store import STORE

_SOURCE = common_model.DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDE, _HIGH, _SMALL = 12, 8, 4

BOARDS: dict[str, tuple[str, str, tuple[Row, ...]]] = {
    "overview": ("Memory: overview", "What memory does for requests, and what it costs them.", OVERVIEW),
    "learning": ("Memory: learning", "From an accepted turn to a memory.", LEARNING),
    "store": ("Memory: store", "Where memories rest, and those held in process.", STORE),
    "envoy": ("Memory: Envoy's view", "What Envoy saw of the filter; the only place where a bypass shows.", ENVOY),
}


def written(name: str) -> str:
    title, tells, rows = BOARDS[name]
    board = (
        dashboard.Dashboard(title)
        .uid(f"memory-extproc-{name}")
        .description(tells)
        .tags(["memory-extproc"])
        .time("now-3h", "now")
        .refresh("30s")
        .timezone("browser")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_choice("job", "memory_extproc_build_info", "job", "sidecars"))
        .with_variable(_choice("envoy", "envoy_server_live", "job", "Envoys"))
        .with_variable(
            _choice(
                "cluster",
                "envoy_cluster_membership_total",
                "envoy_cluster_name",
                "cluster",
                "memory_extproc|.*50051.*|envoyextensionpolicy.*extproc.*",
            )
        )
        .link(
            dashboard.DashboardLink("Memory")
            .type(dashboard_model.DashboardLinkType.DASHBOARDS)
            .tags(["memory-extproc"])
            .include_vars(include_vars=True)
        )
    )
    for row in rows:
        board = board.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            board = board.with_panel(_stat(panel) if panel.small else _plot(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def _choice(name: str, metric: str, label: str, shown: str, pattern: str = "") -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(shown)
        .datasource(_SOURCE)
        .query(f"label_values({metric}, {label})")
        .regex(f"/{pattern}/" if pattern else "")
        .multi(True)
        .include_all(True)
        .current(dashboard_model.VariableOption(selected=True, text="All", value="$__all"))
        .all_value(pattern or ".+")
        .refresh(dashboard_model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    )


def _plot(panel: Panel) -> timeseries.Panel:
    plot = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.tells)
        .datasource(_SOURCE)
        .unit(panel.unit)
        .min(0)
        .span(_WIDE)
        .height(_HIGH)
        .fill_opacity(25 if panel.stacked else 8)
        .show_points(common_model.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_model.LegendDisplayMode.LIST)
            .placement(common_model.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_model.TooltipDisplayMode.MULTI)
            .sort(common_model.SortOrder.DESCENDING)
        )
    )
    for target in _targets(panel):
        plot = plot.with_target(target)
    if panel.stacked:
        plot = plot.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL))
    if panel.warn_above is not None or panel.warn_below is not None:
        plot = plot.thresholds(_thresholds(panel)).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(common_model.GraphThresholdsStyleMode.DASHED)
        )
    return plot


def _stat(panel: Panel) -> stat.Panel:
    shown = (
        stat.Panel()
        .title(panel.title)
        .description(panel.tells)
        .datasource(_SOURCE)
        .unit(panel.unit)
        .span(_SMALL)
        .height(_SMALL)
        .graph_mode(common_model.BigValueGraphMode.AREA)
        .thresholds(_thresholds(panel))
    )
    for target in _targets(panel):
        shown = shown.with_target(target)
    return shown


def _targets(panel: Panel) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().expr(one.expression).legend_format(one.legend or "__auto").ref_id("ABCDEFGH"[at])
        for at, one in enumerate(panel.queries)
    ]


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    good, bad = "green", "red"
    steps = [dashboard_model.Threshold(value=None, color=bad if panel.warn_below is not None else good)]
    if panel.warn_below is not None:
        steps.append(dashboard_model.Threshold(value=panel.warn_below, color=good))
    if panel.warn_above is not None:
        steps.append(dashboard_model.Threshold(value=panel.warn_above, color=bad))
    return dashboard.ThresholdsConfig().mode(dashboard_model.ThresholdsMode.ABSOLUTE).steps(steps)
