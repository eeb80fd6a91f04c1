"""Chart facts: what a matplotlib figure or a pandas table shows, as plain data beside it.

Used by `figures.py` if the sandbox's environment asks for it. No library is imported: its objects
are asked by the names of their classes. A figure that is not understood has the type `unknown`, and
what has too much data has no facts at all.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_MOST_POINTS = 5000
_BOX_POINTS = 5
_BOX_LINES = 5
"""Lines that each box of a box plot has at least: two whiskers, two caps and a median."""
_NEAR = 1e-6
_ROUND = 360.0
_DIGITS = 6
"""Decimals of an angle; what is behind them is the error of its sum."""
_SCALES = ("linear", "log", "symlog", "logit", "asinh", "function", "functionlog")


class _TooMuch(Exception):
    """The figure has more points than facts may have."""


def facts_of(figure: Any) -> dict[str, Any] | None:  # noqa: ANN401  matplotlib's
    """Return what the figure shows; None if that is nothing, too much, or unreadable."""
    try:
        figure.draw_without_rendering()  # before, ticks have no texts
        found = [_chart(axes) for axes in figure.get_axes()]
    except Exception:  # noqa: BLE001  the caller may have put anything into it
        return None
    if not found:
        return None
    if len(found) == 1:
        return found[0]
    return {"type": "superchart", "title": _title_of(figure), "elements": found}


def _title_of(figure: Any) -> str | None:  # noqa: ANN401
    title = getattr(figure, "_suptitle", None)
    return None if title is None else _text(title.get_text())


def _chart(axes: Any) -> dict[str, Any]:  # noqa: ANN401
    wedges = [each for each in axes.patches if type(each).__name__ == "Wedge"]
    bars = [each for each in axes.containers if type(each).__name__ == "BarContainer"]
    dots = [each for each in axes.collections if type(each).__name__ == "PathCollection"]
    title = _text(axes.get_title())
    if wedges:
        return {"type": "pie", "title": title, "elements": _pie(wedges)}
    common = {"title": title, **_labels(axes)}
    if bars:
        return {"type": "bar", **common, "elements": list(_bars(axes, bars))}
    boxes = _boxes(axes)
    if boxes and all(len(lines) >= _BOX_LINES for _, lines in boxes):
        return {"type": "box_and_whisker", **common, "elements": _quartiles(axes, boxes)}
    if axes.lines and not any(type(each).__name__ == "PathPatch" for each in axes.patches):
        lines = ((line.get_label(), line.get_xydata()) for line in axes.lines)
        return {"type": "line", **common, **_ticks(axes), "elements": _points(axes, lines)}
    if dots:
        sets = ((each.get_label(), each.get_offsets()) for each in dots)
        return {"type": "scatter", **common, **_ticks(axes), "elements": _points(axes, sets)}
    return {"type": "unknown", **common, "elements": []}


def _text(given: object) -> str | None:
    return str(given) or None


def _labels(axes: Any) -> dict[str, Any]:  # noqa: ANN401
    found = {}
    for name in ("x", "y"):
        label = _text(getattr(axes, f"get_{name}label")())
        found[f"{name}_label"] = label
        found[f"{name}_unit"] = _unit(label or "")
    return found


def _unit(label: str) -> str | None:
    """Return what stands in the brackets that end a label."""
    for begin, end in (("(", ")"), ("[", "]")):
        if label.endswith(end) and begin in label:
            return label[label.rindex(begin) + 1 : -1] or None
    return None


def _ticks(axes: Any) -> dict[str, Any]:  # noqa: ANN401
    found: dict[str, Any] = {}
    for name in ("x", "y"):
        scale = _scale(axes, name)
        ticks = [_value(axes, name, each) for each in getattr(axes, f"get_{name}ticks")()]
        texts = [each.get_text() for each in getattr(axes, f"get_{name}ticklabels")()]
        found.update({f"{name}_ticks": ticks, f"{name}_tick_labels": texts})
        found[f"{name}_scale"] = scale
    return found


def _scale(axes: Any, name: str) -> str:  # noqa: ANN401
    converter = type(_converter(getattr(axes, f"{name}axis"))).__name__
    if "Date" in converter:
        return "datetime"
    if converter == "StrCategoryConverter":
        return "categorical"
    scale = getattr(axes, f"get_{name}scale")()
    return scale if scale in _SCALES else "unknown"


def _converter(axis: Any) -> Any:  # noqa: ANN401
    if hasattr(axis, "get_converter"):
        return axis.get_converter()
    return getattr(axis, "converter", None)


def _value(axes: Any, name: str, number: Any) -> Any:  # noqa: ANN401
    """Return a coordinate: a time as text, a category by its name, and any other as a number."""
    value = float(number)
    if not math.isfinite(value):
        return None
    axis = getattr(axes, f"{name}axis")
    scale = _scale(axes, name)
    if scale == "datetime":
        import sys

        return sys.modules["matplotlib.dates"].num2date(value).isoformat()
    if scale == "categorical" and value.is_integer():
        names = list(axis.units._mapping)
        if 0 <= value < len(names):
            return names[int(value)]
    return value


def _points(axes: Any, sets: Iterable[tuple[object, Any]]) -> list[dict[str, Any]]:  # noqa: ANN401
    found, count = [], 0
    for label, data in sets:
        count += len(data)
        if count > _MOST_POINTS:
            raise _TooMuch
        points = [[_value(axes, "x", x), _value(axes, "y", y)] for x, y in data]
        found.append({"label": str(label), "points": points})
    return found


def _boxes(axes: Any) -> list[tuple[Any, list[Any]]]:  # noqa: ANN401 - matplotlib's
    """Return the closed rectangles, lines without a name or patches, each with its lines.

    In a box plot those are two whiskers, two caps, the median and the outliers.
    """
    boxes: list[tuple[Any, list[Any]]] = []
    for artist in axes.get_children():  # in the order of their drawing
        is_line = hasattr(artist, "get_xydata")
        if is_line:
            data = artist.get_xydata()
        elif type(artist).__name__ == "PathPatch":
            data = artist.get_path().vertices[:-1]  # the last one only closes it
        else:
            continue
        is_closed = len(data) == _BOX_POINTS and list(data[0]) == list(data[-1])
        if is_closed and (not is_line or str(artist.get_label()).startswith("_")):
            boxes.append((data, []))
        elif is_line and boxes:
            boxes[-1][1].append(data)
    return boxes


def _quartiles(
    axes: Any,  # noqa: ANN401 - matplotlib's
    boxes: list[tuple[Any, list[Any]]],
) -> list[dict[str, Any]]:
    """Return the elements of a box plot."""
    found = []
    for box, (low, high, _, _, median, *rest) in boxes:
        along = 1 if median[0][1] == median[1][1] else 0  # 1: upright
        sides = [float(each[along]) for each in box]
        ends = [float(each[along]) for whisker in (low, high) for each in whisker]
        middle = sum({float(each[1 - along]) for each in box}) / 2
        found.append(
            {
                "label": _at_tick(axes, "x" if along else "y", middle),
                "min": min(ends),
                "first_quartile": min(sides),
                "median": float(median[0][along]),
                "third_quartile": max(sides),
                "max": max(ends),
                "outliers": [float(each[along]) for fliers in rest for each in fliers],
            }
        )
    return found


def _bars(axes: Any, containers: list[Any]) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    count = 0
    for container in containers:
        count += len(container.patches)
        if count > _MOST_POINTS:
            raise _TooMuch
        is_flat = container.orientation == "horizontal"
        for patch in container.patches:
            size = patch.get_width() if is_flat else patch.get_height()
            place = patch.get_y() if is_flat else patch.get_x()
            middle = place + (patch.get_height() if is_flat else patch.get_width()) / 2
            label = _at_tick(axes, "y" if is_flat else "x", middle)
            yield {"label": label, "group": str(container.get_label()), "value": float(size)}


def _at_tick(axes: Any, name: str, place: float) -> str:  # noqa: ANN401
    """Return the text of the tick at a place, or the place itself."""
    texts = [each.get_text() for each in getattr(axes, f"get_{name}ticklabels")()]
    ticks = getattr(axes, f"get_{name}ticks")()
    for tick, text in zip(ticks, texts):
        if abs(float(tick) - place) < _NEAR and text:
            return str(text)
    return str(float(place))


def _pie(wedges: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "label": str(each.get_label()),
            "angle": round(float(abs(each.theta2 - each.theta1)), _DIGITS) % _ROUND or _ROUND,
            "radius": float(each.r),
        }
        for each in wedges[:_MOST_POINTS]
    ]


def table_of(frame: Any) -> dict[str, Any] | None:  # noqa: ANN401  pandas'
    """Return the columns of a pandas table as lists; None if there is too much in it."""
    try:
        rows, columns = frame.shape
        if rows * columns > _MOST_POINTS:
            return None
        names = [str(each) for each in frame.columns]
        lists = [frame.iloc[:, at].tolist() for at in range(columns)]
        return {name: [_cell(each) for each in each_list] for name, each_list in zip(names, lists)}
    except Exception:  # noqa: BLE001  the caller may have put anything into it
        return None


def _cell(value: Any) -> Any:  # noqa: ANN401
    """Return a value as JSON has it: a time as text, and no number for what is not finite."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
