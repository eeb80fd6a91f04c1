"""Figures and tables by the unmodified client of the interpreter: their data beside the picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from e2b_code_interpreter import Sandbox  # type: ignore[import-untyped]

from kit.server.e2b_doors import E2BServer

SHOW = "\nplt.show()"


@pytest.fixture(scope="module")
def box(e2b: E2BServer) -> Iterator[Sandbox]:
    made = Sandbox.create(timeout=600, **e2b.sdk())
    error = made.run_code("import matplotlib.pyplot as plt, pandas as pd, datetime").error
    assert error is None, error
    yield made
    made.kill()


def _chart(box: Sandbox, code: str) -> Any:
    done = box.run_code(code)
    assert done.error is None, done.error
    (result,) = done.results
    assert result.png
    return result.chart


def test_a_line_has_its_points_labels_units_and_ticks(box: Sandbox) -> None:
    code = "plt.plot([1, 2], [4, 5], label='L'); plt.title('T'); plt.xlabel('Time (s)')"
    chart = _chart(box, code + "; plt.ylabel('Way [m]'); plt.xticks([1, 2], ['one', 'two'])" + SHOW)
    assert (chart.type, chart.title) == ("line", "T")
    assert (chart.x_label, chart.x_unit, chart.y_label, chart.y_unit) == (
        "Time (s)",
        "s",
        "Way [m]",
        "m",
    )
    assert (chart.x_scale, chart.x_ticks, chart.x_tick_labels) == (
        "linear",
        [1.0, 2.0],
        ["one", "two"],
    )
    assert [(each.label, each.points) for each in chart.elements] == [
        ("L", [(1.0, 4.0), (2.0, 5.0)])
    ]


def test_times_and_categories_are_coordinates(box: Sandbox) -> None:
    code = "plt.plot([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)], [1, 2])"
    chart = _chart(box, code + SHOW)
    assert chart.x_scale == "datetime"
    assert chart.elements[0].points[0] == ("2024-01-01T00:00:00+00:00", 1.0)
    chart = _chart(box, "plt.scatter(['a', 'b'], [1, 2])" + SHOW)
    assert (chart.type, chart.x_scale) == ("scatter", "categorical")
    assert chart.elements[0].points == [("a", 1.0), ("b", 2.0)]


@pytest.mark.parametrize("call", ["bar", "barh"])
def test_bars_have_their_labels_and_values(box: Sandbox, call: str) -> None:
    chart = _chart(box, f"plt.{call}(['a', 'b'], [3, 4], label='g'){SHOW}")
    assert chart.type == "bar"
    found = [(each.label, each.group, each.value) for each in chart.elements]
    assert found == [("a", "g", 3.0), ("b", "g", 4.0)]


def test_a_pie_has_its_angles(box: Sandbox) -> None:
    chart = _chart(box, "plt.pie([1, 3], labels=['x', 'y'])" + SHOW)
    found = [(each.label, each.angle, each.radius) for each in chart.elements]
    assert found == [("x", 90.0, 1.0), ("y", 270.0, 1.0)]


def test_an_angle_has_no_error_of_its_sum(box: Sandbox) -> None:
    chart = _chart(box, "plt.pie([90, 10], labels=['x', 'y'], startangle=90)" + SHOW)
    assert [each.angle for each in chart.elements] == [324.0, 36.0]


@pytest.mark.parametrize("more", ["", ", vert=False", ", patch_artist=True"])
def test_a_box_plot_has_its_quartiles_and_outliers(box: Sandbox, more: str) -> None:
    code = f"plt.boxplot([[1, 2, 3, 4, 100], [5, 6, 7]]{more})"
    chart = _chart(box, code + SHOW)
    assert chart.type == "box_and_whisker"
    first, second = chart.elements
    assert (first.label, second.label) == ("1", "2")
    assert (first.min, first.first_quartile, first.median) == (1.0, 2.0, 3.0)
    assert (first.third_quartile, first.max, first.outliers) == (4.0, 4.0, [100.0])
    assert second.outliers == []


def test_a_closed_line_is_no_box_plot(box: Sandbox) -> None:
    chart = _chart(box, "plt.plot([0, 1, 1, 0, 0], [0, 0, 1, 1, 0])" + SHOW)
    assert (chart.type, len(chart.elements[0].points)) == ("line", 5)


def test_several_axes_are_one_chart_of_charts(box: Sandbox) -> None:
    code = "f, (a, b) = plt.subplots(1, 2); a.plot([1, 2]); b.bar(['q'], [1]); f.suptitle('S')"
    chart = _chart(box, code + SHOW)
    assert (chart.type, chart.title) == ("superchart", "S")
    assert [each.type for each in chart.elements] == ["line", "bar"]


def test_a_figure_as_the_last_expression_has_its_chart(box: Sandbox) -> None:
    chart = _chart(box, "f, a = plt.subplots(); _ = a.plot([1, 2]); f")
    assert chart.type == "line"


def test_what_is_not_understood_says_so_and_much_data_has_no_chart(box: Sandbox) -> None:
    assert _chart(box, "_ = plt.imshow([[1, 2]])" + SHOW).type == "unknown"
    assert _chart(box, "_ = plt.stairs([1, 2])" + SHOW).type == "unknown"
    assert _chart(box, "plt.plot(range(6000))" + SHOW) is None


def test_a_picture_that_is_shown_or_saved_is_a_result(box: Sandbox) -> None:
    box.run_code("from PIL import Image; image = Image.new('RGB', (2, 1), 'red')")
    (shown,) = box.run_code("image.show()").results
    (saved,) = box.run_code("image.save('a.png')").results
    assert shown.png
    assert saved.png == shown.png
    assert not saved.is_main_result
    assert box.run_code("import io; image.save(io.BytesIO(), 'PNG')").results == []


def test_a_table_has_its_columns(box: Sandbox) -> None:
    code = "pd.DataFrame({'a': [1, 2], 'b': ['x', None], 'c': [1.5, float('nan')]})"
    (result,) = box.run_code(code).results
    assert result.data == {"a": [1, 2], "b": ["x", None], "c": [1.5, None]}
    assert result.html
    (large,) = box.run_code("pd.DataFrame({'a': range(6000)})").results
    assert large.data is None
