"""Panels as Grafana reads them."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as dashboard_model
from grafana_foundation_sdk.models import prometheus as prometheus_model

from scripts.dashboards.envoy import ENVOY
from scripts.dashboards.learning import LEARNING
from scripts.dashboards.overview import OVERVIEW
from scripts.dashboards.panels import OURS, Panel, Row
from scripts.dashboards.store import STORE

_SOURCE = common_model.DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDE, _HIGH, _SMALL = 12, 8, 4
_INFO = 'memory_extproc_build_info{job=~"$job"}'

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
        .tooltip(dashboard_model.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_choice("job", "memory_extproc_build_info", "job", "sidecars"))
        .with_variable(_choice("namespace", _INFO, "namespace", "namespace", missing=True))
        .with_variable(_choice("pod", _INFO, "pod", "pod", missing=True))
        .with_variable(_choice("tenant", "memory_extproc_arm_exchanges_total", "tenant", "tenant", missing=True))
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
        .annotation(_STARTS)
        .annotation(_RELOADS)
        .link(
            dashboard.DashboardLink("Memory")
            .type(dashboard_model.DashboardLinkType.DASHBOARDS)
            .tags(["memory-extproc"])
            .include_vars(include_vars=True)
        )
    )
    for at, row in enumerate(rows):
        opened = dashboard.Row(row.title).collapsed(
            at > 0
        )  # the first row is read; the others are opened when needed
        if at > 0:
            for panel in row.panels:
                opened = opened.with_panel(_drawn(panel))
        board = board.with_row(opened)
        if at == 0:
            for panel in row.panels:
                board = board.with_panel(_drawn(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


def _drawn(panel: Panel) -> stat.Panel | heatmap.Panel | timeseries.Panel:
    if panel.small:
        return _stat(panel)
    return _heatmap(panel) if panel.heatmap else _plot(panel)


def _event(name: str, color: str, expression: str, title: str) -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery().name(name).datasource(_SOURCE).enable(True).icon_color(color).expr(expression)
    ).title_format(title)


# A deploy shows as the starts of its pods, with the version that they run.
_STARTS = _event(
    "Starts",
    "blue",
    f"process_start_time_seconds{{{OURS}}} * on (instance) group_left (version) memory_extproc_build_info{{{OURS}}} * 1000",
    "started {{version}}",
).use_value_for_time(use_value_for_time=True)
_RELOADS = _event(
    "Reloads",
    "purple",
    f'sum by (outcome) (increase(memory_extproc_configuration_reloads_total{{{OURS}, outcome!="unchanged"}}[1m])) > 0',
    "configuration {{outcome}}",
)


def _choice(
    name: str, metric: str, label: str, shown: str, pattern: str = "", *, missing: bool = False
) -> dashboard.QueryVariable:
    """*missing*: "All" takes series without the label, too."""
    return (
        dashboard.QueryVariable(name)
        .label(shown)
        .datasource(_SOURCE)
        .query(f"label_values({metric}, {label})")
        .regex(f"/{pattern}/" if pattern else "")
        .multi(True)
        .include_all(True)
        .current(dashboard_model.VariableOption(selected=True, text="All", value="$__all"))
        .all_value(".*" if missing else pattern or ".+")
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
            .display_mode(common_model.LegendDisplayMode.TABLE)
            .placement(common_model.LegendPlacement.BOTTOM)
            .calcs(["mean", "max", "lastNotNull"])
            .sort_by("Last *")
            .sort_desc(True)
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


def _heatmap(panel: Panel) -> heatmap.Panel:
    """Buckets over time: two modes and a tail show in it, where percentiles show one line between them."""
    shown = (
        heatmap.Panel()
        .title(panel.title)
        .description(panel.tells)
        .datasource(_SOURCE)
        .unit(panel.unit)
        .span(_WIDE)
        .height(_HIGH)
        .calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(panel.unit))
        .color(heatmap.HeatmapColorOptions().scheme("Oranges").steps(64))
        .cell_gap(1)
    )
    for query in _targets(panel):
        shown = shown.with_target(query.format(prometheus_model.PromQueryFormat.HEATMAP))
    return shown


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
        prometheus.Dataquery().expr(one.promql).legend_format(one.legend or "__auto").ref_id("ABCDEFGH"[at])
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
