"""Statistics of a comparison: against float64 computations from full distributions, and their standard errors against
explicit formulas, the jackknife, and simulation."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from scipy import stats

from ctworker.compare.divergence import (
    CONFIDENCE,
    DELTA_P_PERCENTILES,
    KL_PERCENTILES,
    Clusters,
    Columns,
    Divergence,
    summarize,
    worst,
)
from divergence_cases import columns_of, slow_statistics, two_models

#: Windows of unequal sizes, and the window of each target.
SIZES = np.array([100, 37, 250, 1, 112])
WINDOWS = np.repeat(np.arange(5), SIZES)


@pytest.fixture(scope="module")
def models() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return two_models(int(SIZES.sum()), 40, 0.4, seed=1)


@pytest.fixture(scope="module")
def result(models: tuple[np.ndarray, ...]) -> Divergence:
    return summarize(Columns(columns_of(*models), WINDOWS))


def close(value: float, expected: float) -> bool:
    """Within 1e-4 relative or 1e-7 absolute; columns are float32."""
    return math.isclose(value, expected, rel_tol=1e-5, abs_tol=1e-7)


def test_every_statistic_against_full_distributions(models: tuple[np.ndarray, ...], result: Divergence) -> None:
    expected = slow_statistics(*models)
    rows = expected.pop("rows")
    assert set(result.estimates) == set(expected)
    for name, value in expected.items():
        assert close(result.estimates[name].value, value), name
    kl, delta_p = ([row[name] for row in rows] for name in ("kl", "delta_p"))
    for percent in KL_PERCENTILES:
        assert close(result.kl_percentiles[f"{percent:g}"].value, np.percentile(kl, percent))
    for percent in DELTA_P_PERCENTILES:
        assert close(result.delta_p_percentiles[f"{percent:g}"].value, np.percentile(delta_p, percent))
    assert close(result.kl_max, max(kl))
    assert close(result.delta_p_min, min(delta_p)) and close(result.delta_p_max, max(delta_p))
    assert (result.n_targets, result.n_clusters) == (500, 5)


def test_buckets_hold_every_target_once(models: tuple[np.ndarray, ...], result: Divergence) -> None:
    rows = slow_statistics(*models)["rows"]
    assert [(b.low, b.high) for b in result.buckets] == list(itertools.pairwise(CONFIDENCE))
    assert sum(bucket.count for bucket in result.buckets) == len(rows)
    for bucket in result.buckets:
        inside = [row for row in rows if bucket.low <= row["confidence"] < bucket.high]
        assert bucket.count == len(inside) > 0
        assert bucket.kl and bucket.same_top
        assert close(bucket.kl.value, math.fsum(row["kl"] for row in inside) / len(inside))
        assert close(bucket.same_top.value, math.fsum(row["same_top"] for row in inside) / len(inside))


def test_confidence_at_a_limit_belongs_to_the_upper_bucket(models: tuple[np.ndarray, ...]) -> None:
    values = columns_of(*models)
    values["ref_top"] = np.full(500, -0.0, np.float32)  # probability 1
    assert [b.count for b in summarize(Columns(values, WINDOWS)).buckets] == [0, 0, 0, 0, 500]
    values["ref_top"] = np.full(500, math.log(0.5), np.float64)
    summary = summarize(Columns(values, WINDOWS))
    assert [b.count for b in summary.buckets] == [0, 0, 500, 0, 0]
    assert summary.buckets[0].kl is None and summary.to_json()["buckets"][0]["kl"] is None


def test_a_model_against_itself_is_exactly_zero(models: tuple[np.ndarray, ...]) -> None:
    ref, _, targets = models
    result = summarize(Columns(columns_of(ref, ref, targets), WINDOWS))
    one = {"same_top", "top5_overlap", "correlation"}
    for name, estimate in result.estimates.items():
        if name not in ("ppl", "ref_ppl"):
            assert (estimate.value, estimate.se) == (1.0 if name in one else 0.0, 0.0), name
    assert result.estimates["ppl"] == result.estimates["ref_ppl"]
    assert result.kl_max == result.delta_p_min == result.delta_p_max == 0.0
    assert all(e.value == 0.0 for e in result.kl_percentiles.values())


def test_one_window_has_no_standard_error(models: tuple[np.ndarray, ...]) -> None:
    result = summarize(Columns(columns_of(*models), np.zeros(500, np.int64)))
    assert all(e.se is None for e in [*result.estimates.values(), *result.kl_percentiles.values()])
    json.dumps(result.to_json(), allow_nan=False)


def test_no_targets_and_wrong_lengths_are_refused(models: tuple[np.ndarray, ...]) -> None:
    empty = {name: values[:0] for name, values in columns_of(*models).items()}
    with pytest.raises(ValueError, match="no targets"):
        summarize(Columns(empty, WINDOWS[:0]))
    with pytest.raises(ValueError, match="column logprob has 500 values, expected 499"):
        Columns(columns_of(*models), WINDOWS[1:])


def test_json_has_no_nan(models: tuple[np.ndarray, ...]) -> None:
    values = columns_of(*models)
    values["logprob"] = np.full(500, -1.0, np.float32)  # constant: the correlation is not defined
    found = summarize(Columns(values, WINDOWS)).to_json()
    assert found["correlation"] == {"value": None, "se": None}
    json.dumps(found, allow_nan=False)


def test_worst_is_ordered_and_stable(models: tuple[np.ndarray, ...]) -> None:
    values = columns_of(*models)
    values["kl"] = np.zeros(500, np.float32)
    values["kl"][[7, 3, 400]] = [2.0, 5.0, 2.0]
    assert worst(Columns(values, WINDOWS), 4) == [3, 7, 400, 0]


# Standard errors.


def windows_of(x: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    return [part for part in np.split(x, np.cumsum(sizes)[:-1]) if len(part)]


def test_standard_error_of_a_mean_is_the_ratio_estimator(result: Divergence, models: tuple[np.ndarray, ...]) -> None:
    """sqrt(m / (m - 1) * sum (total_w - mean * n_w)^2) / n, written out window by window."""
    kl = np.array([row["kl"] for row in slow_statistics(*models)["rows"]])
    parts = windows_of(kl, SIZES)
    m, n = len(parts), len(kl)
    residuals = [math.fsum(part) - kl.mean() * len(part) for part in parts]
    expected = math.sqrt(m / (m - 1) * math.fsum(r * r for r in residuals)) / n
    assert math.isclose(result.estimates["kl"].se or 0.0, expected, rel_tol=1e-5)


def test_the_targets_of_a_cluster_need_not_be_neighbours(models: tuple[np.ndarray, ...]) -> None:
    columns = columns_of(*models)
    order = np.random.default_rng(0).permutation(500)
    mixed = summarize(Columns({name: x[order] for name, x in columns.items()}, WINDOWS[order] * 7))
    for name, estimate in summarize(Columns(columns, WINDOWS)).estimates.items():
        assert mixed.estimates[name].value == pytest.approx(estimate.value, rel=1e-12)
        assert mixed.estimates[name].se == pytest.approx(estimate.se, rel=1e-9)


def test_windows_of_one_size_give_the_textbook_error() -> None:
    x = np.random.default_rng(3).standard_normal(30 * 8)
    means = x.reshape(30, 8).mean(axis=1)
    se = Clusters(np.repeat(np.arange(30), 8)).mean(x).se
    assert math.isclose(se or 0.0, means.std(ddof=1) / math.sqrt(30), rel_tol=1e-12)


def population(rng: np.random.Generator, m: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The window of each target, of m windows of random sizes, and values that a window's targets share in part, skewed
    like divergences of a text."""
    sizes = rng.integers(5, 60, m)
    window = np.repeat(rng.standard_normal(m), sizes)
    noise = rng.standard_normal((2, sizes.sum()))
    return np.repeat(np.arange(m), sizes), {
        "x": np.exp(0.5 * window + noise[0]),
        "y": np.exp(0.5 * window + 0.8 * noise[0] + 0.6 * noise[1]),
        "confident": (0.7 * window + noise[1]) > 0.5,
    }


STATISTICS = {
    "mean": lambda c, d: c.mean(d["x"]),
    "difference": lambda c, d: c.mean(d["x"] - d["y"]),
    "share": lambda c, d: c.mean((d["x"] > 1.0).astype(float)),
    "root mean square": lambda c, d: c.root_mean_square(np.log(d["x"])),
    "correlation": lambda c, d: c.correlation(np.log(d["x"]), np.log(d["y"])),
    "bucket": lambda c, d: c.mean_where(d["x"], d["confident"]),
    "median": lambda c, d: c.percentiles(d["x"], (50.0,))["50"],
    "90": lambda c, d: c.percentiles(d["x"], (90.0,))["90"],
    "99": lambda c, d: c.percentiles(d["x"], (99.0,))["99"],
}


@pytest.mark.parametrize("name", STATISTICS)
def test_coverage(name: str) -> None:
    """In 800 draws of 200 windows, the interval of 95 % covers the true value about that often, and the standard errors
    are the spread of the estimates. An error over targets instead of windows is far too small."""
    draw, m, runs = STATISTICS[name], 200, 800
    windows, data = population(np.random.default_rng(99), 60_000)
    truth = draw(Clusters(windows), data).value
    rng = np.random.default_rng(7)
    found = []
    for _ in range(runs):
        windows, data = population(rng, m)
        found.append(draw(Clusters(windows), data))
    values = np.array([estimate.value for estimate in found])
    errors = np.array([estimate.se for estimate in found])
    covered = np.abs(values - truth) <= stats.t.ppf(0.975, m - 1) * errors
    assert 0.925 <= covered.mean() <= 0.97
    assert 0.9 <= np.sqrt((errors**2).mean()) / values.std(ddof=1) <= 1.12
    by_target = draw(Clusters(np.arange(len(windows))), data).se
    assert name in ("difference", "correlation") or by_target < 0.8 * np.median(errors)


@pytest.mark.parametrize("name", ["mean", "difference", "share", "root mean square", "correlation", "bucket"])
def test_standard_error_agrees_with_the_jackknife(name: str) -> None:
    """Leaving out one window at a time."""
    draw = STATISTICS[name]
    windows, data = population(np.random.default_rng(11), 150)
    left_out = [
        draw(Clusters(windows[windows != w]), {key: x[windows != w] for key, x in data.items()}).value
        for w in range(150)
    ]
    jackknife = math.sqrt(149 / 150 * np.square(left_out - np.mean(left_out)).sum())
    assert math.isclose(draw(Clusters(windows), data).se or 0.0, jackknife, rel_tol=0.05)


def test_a_percentile_beyond_the_data_has_no_standard_error() -> None:
    windows, data = population(np.random.default_rng(5), 4)
    assert Clusters(windows).percentiles(data["x"], (99.9,))["99.9"].se is None
