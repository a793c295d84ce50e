"""The report as one HTML file: goals, figures and plots of every case. No script, nothing is loaded from anywhere. Pure."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lab.bench.results import CaseResult, Line, Strip, rounded
from validator.evidence.charts import nice_ticks

WIDTH, LEFT, RIGHT, ROW = 640, 120, 20, 30
LINE_HEIGHT, LINE_LEFT, BOTTOM = 200, 60, 24
COLOURS = ("#0b6bcb", "#d9480f", "#2b8a3e", "#9c36b5")

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2128;--soft:#5b6470;--line:#d9dee4;--good:#136c3a;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--bg:#11151a;--fg:#e4e8ed;--soft:#9aa4b0;--line:#2e353e;--good:#6fd69a;
--bad:#ff8a80}}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1360px;margin:0 auto;padding:28px 24px 60px}
h2{font-size:19px;margin:38px 0 6px;border-top:1px solid var(--line);padding-top:20px}h3{font-size:14px;margin:14px 0 4px}
p{margin:0 0 8px}.soft{color:var(--soft)}.yes{color:var(--good)}.no{color:var(--bad);font-weight:600}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(460px,100%),1fr));gap:8px 28px}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
td,th{padding:3px 14px 3px 0;text-align:left;border-bottom:1px solid var(--line)}td.n{text-align:right}
svg{display:block;width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
.grid{stroke:var(--line)}.end{text-anchor:end}.middle{text-anchor:middle}
"""


def page(document: Mapping[str, Any], cases: Sequence[CaseResult]) -> str:
    """The whole page; `document` is the report that the same cases are in."""
    machine, versions = document["machine"], document["versions"]
    where = (
        f"{document['started_at']}, {machine.get('cores')} cores {machine.get('cpu')}, {machine.get('memory')}, "
        f"Linux {machine.get('kernel')}. At the beginning and at the end: load {machine.get('load_average')} and "
        f"{document['load_average_at_the_end']}, ten million additions in Python {machine.get('python_seconds')} and "
        f"{document['python_seconds_at_the_end']} s. "
        f"{', '.join(f'{name} {value}' for name, value in versions.items())}."
    )
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Benchmark</title>',
        f"<style>{STYLE}</style><main><h1>As fast as Kafka's own follower?</h1>",
        f'<p class="soft">{_text(where)}</p>',
        "<p>Figures are medians of rounds that take turns; a dot is a round, a stroke the median.</p>",
    ]
    if document["quick"]:
        parts.append('<p class="no">A quick look: little data, single rounds, nothing is judged.</p>')
    parts += [f'<p class="no">{_text(failure)}</p>' for failure in document["failures"]]
    parts.append(_goals(cases))
    parts += [_case(case) for case in cases]
    return "".join(parts) + "</main></html>\n"


def _goals(cases: Sequence[CaseResult]) -> str:
    rows = []
    for case in cases:
        for goal in case.goals:
            shown = goal.as_json()
            met = "yes" if goal.met else "no"
            rows.append(
                f'<tr><td>{_text(goal.name)}</td><td class="n">{_text(shown["value"])} {_text(goal.unit)}</td>'
                f'<td>{_text(shown["goal"])}</td><td class="{met}">{met}</td></tr>'
            )
    return f"<table><tr><th>goal<th>measured<th>bound<th>met</tr>{''.join(rows)}</table>"


def _case(case: CaseResult) -> str:
    plots = "".join(f"<div><h3>{_text(plot.title)}</h3>{draw(plot)}</div>" for plot in case.plots)
    figures = "".join(
        f'<tr><td>{_text(name.replace("_", " "))}</td><td class="n">{_text(rounded(value))}</td></tr>'
        for name, value in case.figures.items()
    )
    checked = ", ".join(f"{value:,} {name}" for name, value in case.checked.items())
    return (
        f"<h2>{_text(case.name)}</h2><p>{_text(case.what)}</p>"
        + "".join(f'<p class="no">{_text(problem)}</p>' for problem in case.problems)
        + (f'<p class="soft">Compared afterwards: {checked}.</p>' if checked else "")
        + f'<div class="plots">{plots}</div><details><summary>Figures</summary><table>{figures}</table></details>'
    )


def draw(plot: Strip | Line) -> str:
    """The plot as inline SVG; a sentence if there is nothing to draw."""
    return _strip(plot) if isinstance(plot, Strip) else _line(plot)


def _strip(plot: Strip) -> str:
    sides = {side: values for side, values in plot.values.items() if values}
    if not sides:
        return "<p>No rounds.</p>"
    ticks = nice_ticks(max(max(values) for values in sides.values()))
    height = ROW * len(sides) + 26

    def x(value: float) -> float:
        return LEFT + max(0.0, value) / ticks[-1] * (WIDTH - LEFT - RIGHT)

    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{_text(plot.title)}">']
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="0" y2="{height - 20}"/>')
        parts.append(f'<text class="middle" x="{x(tick):.1f}" y="{height - 5}">{tick:g}</text>')
    for row, (side, values) in enumerate(sides.items()):
        at, colour = ROW * row + ROW / 2, COLOURS[row % len(COLOURS)]
        middle = median(values)
        name = _text(side.replace("_", " "))
        parts.append(f'<text class="end" x="{LEFT - 10}" y="{at + 4:.1f}">{name}</text>')
        parts.extend(
            f'<circle cx="{x(value):.1f}" cy="{at:.1f}" r="4" fill="{colour}" fill-opacity=".55">'
            f"<title>{_text(rounded(value))} {_text(plot.unit)}</title></circle>"
            for value in values
        )
        parts.append(
            f'<line x1="{x(middle):.1f}" x2="{x(middle):.1f}" y1="{at - 11:.1f}" y2="{at + 11:.1f}" stroke="{colour}" '
            f'stroke-width="3"><title>median {_text(rounded(middle))} {_text(plot.unit)}</title></line>'
        )
    return "".join(parts) + f'</svg><p class="soft">{_text(plot.unit)}</p>'


def _line(plot: Line) -> str:
    curves = {name: points for name, points in plot.curves.items() if points}
    if not curves:
        return "<p>No samples.</p>"
    ticks = nice_ticks(max(value for points in curves.values() for _, value in points))
    last = max(points[-1][0] for points in curves.values()) or 1.0
    floor = LINE_HEIGHT - BOTTOM

    def y(value: float) -> float:
        return floor - value / ticks[-1] * (floor - 8)

    def x(seconds: float) -> float:
        return LINE_LEFT + seconds / last * (WIDTH - LINE_LEFT - RIGHT)

    parts = [f'<svg viewBox="0 0 {WIDTH} {LINE_HEIGHT}" role="img" aria-label="{_text(plot.title)}">']
    for tick in ticks:
        parts.append(
            f'<line class="grid" x1="{LINE_LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        )
        parts.append(f'<text class="end" x="{LINE_LEFT - 6}" y="{y(tick) + 4:.1f}">{tick:g}</text>')
    parts.extend(
        f'<text class="{"end" if share else ""}" x="{x(share * last):.1f}" y="{LINE_HEIGHT - 6}">'
        f"{share * last:.0f} s</text>"
        for share in (0, 0.5, 1)
    )
    for number, points in enumerate(curves.values()):
        step = max(1, len(points) // 400)
        path = "L".join(f"{x(seconds):.1f} {y(value):.1f}" for seconds, value in points[::step])
        parts.append(
            f'<path d="M{path}" fill="none" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="2"/>'
        )
    return "".join(parts) + f'</svg><p class="soft">{_text(plot.unit)}: {_text(", ".join(curves))}</p>'


def _text(value: object) -> str:
    return html.escape(str(value))
