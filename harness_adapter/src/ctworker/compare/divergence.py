"""Statistics of a comparison: from the per-target columns of a `divergence` job to estimates with standard errors.

docs/METHODS.md ("Divergence") defines every number. Log-probabilities are natural logarithms. Needs numpy.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

#: Columns of a `divergence` job, one value per target, and their types in memory.
COLUMNS = {
    "logprob": np.float32,
    "ref_logprob": np.float32,
    "kl": np.float32,
    "kl_reverse": np.float32,
    "tv": np.float32,
    "greedy": np.int32,
    "ref_greedy": np.int32,
    "ref_top": np.float32,
    "overlap5": np.uint8,
}
KL_PERCENTILES = (25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
DELTA_P_PERCENTILES = (0.1, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
#: Windows from which a standard error is shown: with fewer, the error itself is known to no more than a factor of two.
FEWEST_CLUSTERS = 5
#: Limits of the buckets: probability of the reference's most probable token.
CONFIDENCE = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class Columns:
    """A job's results, in the order of the texts, their windows, and the windows' targets.

    values: the arrays of COLUMNS, n targets each. cluster: for each target, the number of the piece of text that it belongs
    to, usually its window: standard errors are over these pieces.
    """

    values: dict[str, npt.NDArray[Any]]
    cluster: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        for name in COLUMNS:
            if len(self.values[name]) != len(self):
                raise ValueError(f"column {name} has {len(self.values[name])} values, expected {len(self)}")

    def __len__(self) -> int:
        return len(self.cluster)

    def wide(self, name: str) -> Floats:
        """A column in float64."""
        return self.values[name].astype(np.float64)


@dataclass(frozen=True)
class Estimate:
    """value: NaN if it is not defined. se: standard error over clusters; None if there are fewer than two, or too few
    targets."""

    value: float
    se: float | None

    def to_json(self) -> dict[str, float | None]:
        return {"value": None if math.isnan(self.value) else self.value, "se": self.se}


@dataclass(frozen=True)
class Bucket:
    """The targets at which the reference's most probable token has a probability in [low, high)."""

    low: float
    high: float
    count: int
    kl: Estimate | None  # None: no targets
    same_top: Estimate | None

    def to_json(self) -> dict[str, Any]:
        estimates = {
            name: value and value.to_json()
            for name, value in (("kl", self.kl), ("same_top", self.same_top))
        }
        return {"low": self.low, "high": self.high, "count": self.count, **estimates}


@dataclass(frozen=True)
class Divergence:
    """All statistics of one model against a reference. Probabilities and shares are 0 .. 1."""

    n_targets: int
    n_clusters: int
    estimates: dict[str, Estimate]
    kl_percentiles: dict[str, Estimate]
    kl_max: float
    delta_p_percentiles: dict[str, Estimate]
    delta_p_min: float
    delta_p_max: float
    buckets: list[Bucket] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        def plain(table: dict[str, Estimate]) -> dict[str, Any]:
            return {name: estimate.to_json() for name, estimate in table.items()}

        return {
            "targets": self.n_targets,
            "clusters": self.n_clusters,
            **plain(self.estimates),
            "kl_percentiles": plain(self.kl_percentiles) | {"max": {"value": self.kl_max, "se": None}},
            "delta_p_percentiles": {
                "min": {"value": self.delta_p_min, "se": None},
                **plain(self.delta_p_percentiles),
                "max": {"value": self.delta_p_max, "se": None},
            },
            "buckets": [bucket.to_json() for bucket in self.buckets],
        }


class Clusters:
    """Standard errors of statistics whose sampling unit is a cluster of targets (a window), not the target.

    A statistic that is a smooth function of means has an influence value u_t for each target t, with a sum of 0: to
    first order, a target moves the statistic by u_t / n. With m clusters,

        se^2 = m / (m - 1) * sum over clusters of (sum of u_t of the cluster's targets)^2 / n^2.

    For a mean, u_t = x_t - mean: this is the usual estimator for a ratio of totals, so clusters may differ in size.
    """

    def __init__(self, cluster: npt.NDArray[np.int64]) -> None:
        """cluster: the number of each target's cluster."""
        labels, self._cluster = np.unique(cluster, return_inverse=True)
        self.n, self.m = len(cluster), len(labels)

    def se(self, influence: Floats, n: int | None = None) -> float | None:
        """n: number of targets that the statistic is about, if not all of them; the influence of the others is 0."""
        if self.m < 2:
            return None
        totals = np.bincount(self._cluster, weights=influence)
        return math.sqrt(self.m / (self.m - 1) * float(totals @ totals)) / (n or self.n)

    def mean(self, x: Floats) -> Estimate:
        mean = float(x.mean())
        return Estimate(mean, self.se(x - mean))

    def mean_where(self, x: Floats, chosen: npt.NDArray[np.bool_]) -> Estimate | None:
        """The mean over the chosen targets. Their number is random, which the standard error includes."""
        n = int(chosen.sum())
        if n == 0:
            return None
        mean = float(x[chosen].mean())
        return Estimate(mean, self.se(np.where(chosen, x - mean, 0.0), n))

    def root_mean_square(self, x: Floats) -> Estimate:
        square = x * x
        mean = float(square.mean())
        root = math.sqrt(mean)
        if root == 0.0:
            return Estimate(0.0, None if self.m < 2 else 0.0)
        return Estimate(root, self.se((square - mean) / (2.0 * root)))

    def correlation(self, x: Floats, y: Floats) -> Estimate:
        """Pearson's; NaN if x or y is constant."""
        dx, dy = x - x.mean(), y - y.mean()
        xx, yy, xy = float((dx * dx).mean()), float((dy * dy).mean()), float((dx * dy).mean())
        if xx == 0.0 or yy == 0.0:
            return Estimate(math.nan, None)
        r = xy / math.sqrt(xx * yy)
        zx, zy = dx / math.sqrt(xx), dy / math.sqrt(yy)
        return Estimate(r, self.se(zx * zy - 0.5 * r * (zx * zx + zy * zy)))

    def percentiles(self, x: Floats, percents: tuple[float, ...]) -> dict[str, Estimate]:
        """Interpolated linearly between order statistics. Their standard errors are Woodruff's: half the distance between
        the quantiles at p - s and p + s, where s is the standard error of the share of targets at most the quantile."""
        ordered = np.sort(x)
        out = {}
        for percent in percents:
            p = percent / 100.0
            value = _quantile(ordered, p)
            below = (x <= value).astype(np.float64)
            s = self.se(below - below.mean())
            se = None
            if s is not None and s <= min(p, 1.0 - p):
                se = 0.5 * (_quantile(ordered, p + s) - _quantile(ordered, p - s))
            out[f"{percent:g}"] = Estimate(value, se)
        return out


def _quantile(ordered: Floats, p: float) -> float:
    at = p * (len(ordered) - 1)
    low = min(int(at), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (at - low) * (ordered[high] - ordered[low]))


def summarize(columns: Columns) -> Divergence:
    """Raises ValueError without targets."""
    if len(columns) == 0:
        raise ValueError("no targets to compare")
    clusters = Clusters(columns.cluster)
    nll, ref_nll = -columns.wide("logprob"), -columns.wide("ref_logprob")
    kl = columns.wide("kl")
    delta_p = np.exp(-nll) - np.exp(-ref_nll)
    same_top = (columns.values["greedy"] == columns.values["ref_greedy"]).astype(np.float64)
    estimates = {
        "kl": clusters.mean(kl),
        "kl_reverse": clusters.mean(columns.wide("kl_reverse")),
        "total_variation": clusters.mean(columns.wide("tv")),
        "same_top": clusters.mean(same_top),
        "top5_overlap": clusters.mean(columns.wide("overlap5") / 5.0),
        "delta_p": clusters.mean(delta_p),
        "delta_p_rms": clusters.root_mean_square(delta_p),
        "correlation": clusters.correlation(nll, ref_nll),
        "ln_ppl_ratio": clusters.mean(nll - ref_nll),
        "ppl": _perplexity(clusters.mean(nll)),
        "ref_ppl": _perplexity(clusters.mean(ref_nll)),
    }
    return Divergence(
        clusters.n,
        clusters.m,
        estimates,
        clusters.percentiles(kl, KL_PERCENTILES),
        float(kl.max()),
        clusters.percentiles(delta_p, DELTA_P_PERCENTILES),
        float(delta_p.min()),
        float(delta_p.max()),
        _buckets(clusters, np.exp(columns.wide("ref_top")), kl, same_top),
    )


def _perplexity(mean_nll: Estimate) -> Estimate:
    """By the delta method. Infinite above e^709."""
    ppl = math.exp(mean_nll.value) if mean_nll.value < 709.0 else math.inf
    return Estimate(ppl, None if mean_nll.se is None else ppl * mean_nll.se)


def _buckets(clusters: Clusters, confidence: Floats, kl: Floats, same_top: Floats) -> list[Bucket]:
    place = np.searchsorted(CONFIDENCE[1:-1], confidence, side="right")
    out = []
    for i, (low, high) in enumerate(itertools.pairwise(CONFIDENCE)):
        chosen = place == i
        out.append(
            Bucket(
                low, high, int(chosen.sum()), clusters.mean_where(kl, chosen), clusters.mean_where(same_top, chosen)
            )
        )
    return out


def worst(columns: Columns, n: int) -> list[int]:
    """The indices of the n targets with the largest divergence, largest first; equal ones in their order."""
    return [int(i) for i in np.argsort(-columns.wide("kl"), kind="stable")[:n]]
