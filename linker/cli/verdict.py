"""`linker doctor` for people: a block per finding, the worst last, where a terminal shows it, and the verdict below them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from linker.cli.layout import hanging
from linker.cli.output import coloured, one_line, terminal_width

if TYPE_CHECKING:
    from admin.models import Check, DoctorReport

_ORDER = ("OK", "WARN", "FAIL")
_MARGIN = 6


def doctor(reports: Iterable[DoctorReport]) -> str:
    parts = [_report(one) for one in reports]
    return "\n\n".join(parts) or "no links yet, nothing to look at: linker link create"


def _report(report: DoctorReport) -> str:
    lines: list[str] = []
    for check in sorted(report.checks, key=lambda one: _ORDER.index(one.result)):
        lines += _block(check)
    return "\n".join([*lines, _verdict(report)])


def _block(check: Check) -> list[str]:
    width = terminal_width()
    first, *rest = hanging(
        f"{check.result:<{_MARGIN}}",
        f"{one_line(check.name)}: {one_line(check.detail)}",
        width,
        indent=_MARGIN,
    )
    lines = [coloured(first[:_MARGIN]) + first[_MARGIN:], *rest]
    if check.remedy:
        lines += hanging(f"{' ' * _MARGIN}-> ", one_line(check.remedy), width)
    return lines


def _verdict(report: DoctorReport) -> str:
    count = {result: sum(one.result == result for one in report.checks) for result in _ORDER}
    counted = f"{count['OK']} OK, {count['WARN']} WARN, {count['FAIL']} FAIL"
    name = "without a link" if report.link == "none yet" else f"link {one_line(report.link)}"
    if count["FAIL"]:
        end = "do not promote before each FAIL is gone"
    elif count["WARN"]:
        end = "nothing stops it; read each WARN before a promote"
    else:
        end = "nothing is in the way"
    return "\n".join(hanging("", f"{name}: {counted}: {end}", terminal_width()))
