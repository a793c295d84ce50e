"""Curves as inline SVG. No script, no font and no colour of its own: classes `c0` to `c7` get theirs from the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from validator.evidence.series import Curve, Point
from validator.evidence.text import escaped, moment

WIDE, HALF, HEIGHT = 1340, 640, 250
"""Sizes in the page's own pixels at its full width, so that texts are of one size in all charts."""
LEFT, RIGHT, TOP, BOTTOM = 70, 14, 12, 28
COLOURS = 8


def line_chart(
    curves: Sequence[Curve],
    *,
    label: str,
    unit: Callable[[float], str],
    mark_ms: int | None = None,
    width: int = HALF,
    none: str = "No samples were taken.",
) -> str:
    """A chart with its legend as HTML; `unit` writes the values, `mark_ms` is a moment to be marked. Empty curves: a
    sentence."""
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        return f'<p class="none">{escaped(none)}</p>'
    first = min(curve.points[0][0] for curve in drawn)
    last = max(curve.points[-1][0] for curve in drawn)
    if mark_ms is not None and first <= mark_ms <= last + (last - first) // 2:
        last = max(last, mark_ms)
    else:
        mark_ms = None
    span = max(1, last - first)
    ticks = nice_ticks(max(value for curve in drawn for _, value in curve.points))
    top = ticks[-1]

    def x(ms: int) -> float:
        return LEFT + (ms - first) / span * (width - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{escaped(label)}">']
    for tick in ticks:
        at = y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 8}" y="{at + 4:.1f}">{escaped(unit(tick))}</text>')
    for at_ms, text, anchor in time_ticks(first, last):
        parts.append(
            f'<text class="tick {anchor}" x="{x(at_ms):.1f}" y="{HEIGHT - 8}">{escaped(text)}</text>'
        )
    if mark_ms is not None:
        at = x(mark_ms)
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
    legend = []
    colour = 0
    # Goals and muted curves lie behind; equal curves would hide each other, so each is thinner than the last.
    for curve in sorted(drawn, key=lambda one: (not one.dashed, not one.muted)):
        if curve.dashed or curve.muted:
            kind = "aim" if curve.dashed else "muted"
        else:
            kind, colour = f"c{colour % COLOURS}", colour + 1
        stroke = 1.5 if curve.dashed or curve.muted else max(1.5, 4 - 1.1 * (colour - 1))
        parts.append(
            f'<path class="line {kind}" stroke-width="{stroke:g}" d="{_path(curve.points, x, y)}">'
            f"<title>{escaped(curve.name)}: {escaped(unit(curve.points[-1][1]))} at "
            f"{escaped(moment(curve.points[-1][0]))}</title></path>"
        )
        legend.append(f'<li><i class="{kind}"></i>{escaped(curve.name)}</li>')
    parts.append("</svg>")
    return f'{"".join(parts)}<ul class="legend">{"".join(legend)}</ul>'


def _path(points: Sequence[Point], x: Callable[[int], float], y: Callable[[float], float]) -> str:
    if len(points) == 1:
        ms, value = points[0]
        return f"M{x(ms) - 3:.1f} {y(value):.1f}h6"
    steps = [f"{x(ms):.1f} {y(value):.1f}" for ms, value in points]
    return "M" + "L".join(steps)


def nice_ticks(highest: float) -> list[float]:
    """0 and about four round values, the last of them not below `highest`."""
    if not math.isfinite(highest) or highest <= 0:
        return [0.0, 1.0]
    raw = highest / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999999)
    return [step * index for index in range(math.ceil(highest / step - 1e-9) + 1)]


def time_ticks(first: int, last: int) -> list[tuple[int, str, str]]:
    """(ms, text, class): the first moment in UTC, then time since then."""
    span = last - first
    ticks = [(first, moment(first)[11:19], "start")]
    if span <= 0:
        return ticks
    ticks += [(first + span * part // 4, _since(span * part / 4), "middle") for part in (1, 2, 3)]
    ticks.append((last, _since(span), "end"))
    return ticks


def _since(ms: float) -> str:
    seconds = ms / 1000
    if seconds < 10:
        return f"+{seconds:.1f} s"
    if seconds < 600:
        return f"+{seconds:.0f} s"
    if seconds < 7200:
        return f"+{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"+{seconds / 3600:.1f} h"
    return f"+{seconds / 86_400:.1f} d"


def phase_bars(phases: Sequence[tuple[str, int, int]]) -> str:
    """(name, begin in ms since 1970, ms) as bars one below the other, on one time axis."""
    if not phases:
        return '<p class="none">No promote was under way.</p>'
    first = min(begin for _, begin, _ in phases)
    span = max(1, max(begin + ms for _, begin, ms in phases) - first)
    left, right, row = 130, 100, 24
    height = row * len(phases) + 6
    parts = [f'<svg viewBox="0 0 {WIDE} {height}" role="img" aria-label="Phases of the promote">']
    for index, (name, begin, ms) in enumerate(phases):
        room = WIDE - left - right
        start = left + (begin - first) / span * room
        width = max(2.0, ms / span * room)
        at = index * row + 4
        parts.append(f'<text class="phase end" x="{left - 10}" y="{at + 13}">{escaped(name)}</text>')
        parts.append(f'<rect class="bar" x="{start:.1f}" y="{at}" width="{width:.1f}" height="17" rx="2"/>')
        parts.append(f'<text class="tick start" x="{start + width + 6:.1f}" y="{at + 13}">{ms:,} ms</text>')
    parts.append("</svg>")
    return "".join(parts)
