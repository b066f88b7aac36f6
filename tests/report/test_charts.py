import re

import numpy as np
import pytest

from mlt_jax.report import charts


def numbers(drawing, name):
    return [float(x) for x in re.findall(rf'{name}="([-\d.]+)%?"', drawing)]


def test_a_line_without_a_finite_value_is_left_out_and_the_others_are_drawn():
    drawing = charts.lines({"diverged": ([1.0, 2.0], [np.nan, np.nan]), "fine": ([1.0, 2.0], [0.5, 0.25])})
    assert drawing.count('class="line') == 1
    assert 'class="line s1"' in drawing
    assert "diverged" in drawing
    assert charts.lines({"diverged": ([1.0], [np.inf])}) == ""


def test_rates_are_dots_at_their_share_of_the_scale_and_intervals_stay_inside_it():
    drawing = charts.intervals([0.1, 0.3], [[0.05, 0.2], [0.1, 0.9]], 0.4, (0.2, 0.4))
    assert numbers(drawing, "cx") == [25, 75]
    bars = re.findall(r'class="bar \w+" x1="([\d.]+)%" x2="([\d.]+)%"', drawing)
    assert bars == [("12.50", "50.00"), ("25.00", "100.00")]
    assert drawing.count('class="true"') == 2
    unknown = charts.intervals([0.1, 0.3], [[np.nan, np.nan]] * 2, 0.4, None)
    assert 'class="bar' not in unknown
    assert 'class="true"' not in unknown


def test_a_heat_map_has_rows_of_the_clean_label():
    texts = re.findall(r'class="cell (\w+)".*?>([\d.]+)</text>', charts.heat_map(np.array([[0.9, 0.1], [0.3, 0.7]])))
    assert texts == [("keep", "0.900"), ("neg", "0.100"), ("pos", "0.300"), ("keep", "0.700")]


def test_a_curve_ends_on_its_two_levels_and_has_a_dot_per_group():
    grid, dots = np.linspace(-5, 5, 80), np.array([-2.0, 0.0, 2.0])
    fitted = 0.1 + 0.6 / (1 + np.exp(-grid))
    drawing = charts.curve(dots, np.array([0.2, 0.4, 0.6]), fitted, grid, 0.1, 0.7)
    assert drawing.count("<circle") == 3
    low, high = (float(re.search(rf'level {kind}".*?y1="([\d.]+)"', drawing)[1]) for kind in ("neg", "pos"))
    assert high < low  # 1 is at the top
    heights = numbers(drawing, "cy")
    assert heights == sorted(heights, reverse=True)
    assert high < heights[2] < heights[0] < low


def test_bars_are_as_high_as_their_counts():
    drawing = charts.histogram(np.array([1.0, 4.0, 2.0]), np.full(5, 0.5), np.full(5, 0.1), "neg")
    heights = numbers(drawing, " height")
    assert heights[1] == 4 * heights[0] == 2 * heights[2]
    assert drawing.count('class="fit') == 2


@pytest.mark.parametrize(("value", "top"), [(0.005, 0.01), (0.04, 0.04), (0.041, 0.1), (0.75, 0.8), (1.7, 1.0)])
def test_a_scale_ends_on_the_next_round_number(value, top):
    assert charts.nice_top(value) == top
    assert f"{100 * top:.3g} %</text></svg>" in charts.scale(top)
