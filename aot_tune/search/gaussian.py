"""A Gaussian process: a smooth estimate of the cost of untried configs, and of its uncertainty."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["GaussianProcess"]

Floats = NDArray[np.float64]

_STEPS = 12
"""Steps of ascent in each fit. The next fit continues from the end of this one."""

_SPREAD = 1.0
"""Standard deviation of the prior of a length's logarithm."""

_LEAST_NOISE, _MOST_NOISE = np.log(1e-5), np.log(0.3)


class GaussianProcess:
    """Regression with a Matern 5/2 kernel that has a length for each feature.

    The lengths and the share of noise have the highest posterior density (Rasmussen and Williams, Gaussian Processes
    for Machine Learning, 5.4.1). Gradient ascent with adaptive steps (Rprop) finds them. The variance is the best one
    for them, in closed form.
    """

    def __init__(self, features: int) -> None:
        self._middle = np.log(0.5 * np.sqrt(max(features, 1)))
        self._logs = np.append(np.full(features, self._middle), np.log(1e-2))
        self._sizes = np.full(features + 1, 0.1)
        self._signs = np.zeros(features + 1)

    def fit(self, points: Floats, values: Floats) -> None:
        """Find lengths and noise for values [n] at points [n, features]."""
        squares = (points[:, None, :] - points[None, :, :]) ** 2
        for _ in range(_STEPS):
            self._step(self._gradient(squares, values))

    def take_lengths(self, other: GaussianProcess) -> None:
        """Use the lengths that another process found for the same features."""
        self._logs[:-1] = other._logs[:-1]

    def learn(self, points: Floats, values: Floats) -> None:
        """Use these values for `predict`, with the current lengths."""
        self._scale = np.exp(-self._logs[:-1])
        self._points = points * self._scale
        self._mean = float(values.mean())
        kernel = _matern(_squares(self._points, self._points))
        kernel[np.diag_indices_from(kernel)] += np.exp(self._logs[-1]) + 1e-8
        self._inverse = np.linalg.inv(kernel)
        self._weights = self._inverse @ (values - self._mean)
        self._variance = max(float((values - self._mean) @ self._weights) / len(values), 1e-12)

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation [m] of the values at points [m, features], without noise."""
        cross = _matern(_squares(points * self._scale, self._points))
        explained = np.einsum("ij,ij->i", cross @ self._inverse, cross)
        return self._mean + cross @ self._weights, np.sqrt(self._variance * np.maximum(1.0 - explained, 1e-10))

    def _gradient(self, squares: Floats, values: Floats) -> Floats:
        """The gradient of the log posterior density by the logarithms of the lengths and of the noise."""
        count = len(values)
        weighted = np.exp(-2.0 * self._logs[:-1])
        noise = np.exp(self._logs[-1])
        distance = np.sqrt(5.0 * (squares @ weighted))
        decay = np.exp(-distance)
        kernel = (1.0 + distance + distance**2 / 3.0) * decay
        kernel[np.diag_indices(count)] += noise + 1e-8
        inverse = np.linalg.inv(kernel)
        centred = values - values.mean()
        weights = inverse @ centred
        variance = max(float(centred @ weights) / count, 1e-12)
        pull = np.outer(weights, weights) / variance - inverse
        slope = pull * (5.0 / 3.0) * (1.0 + distance) * decay
        lengths = 0.5 * np.tensordot(slope, squares, axes=2) * weighted
        found = np.append(lengths, 0.5 * float(np.trace(pull)) * noise)
        found[:-1] -= (self._logs[:-1] - self._middle) / _SPREAD**2
        found[-1] -= (self._logs[-1] - np.log(1e-2)) / 2.0**2
        return found

    def _step(self, gradient: Floats) -> None:
        signs = np.sign(gradient)
        self._sizes = np.clip(self._sizes * np.where(signs * self._signs < 0, 0.5, 1.2), 1e-3, 0.5)
        self._signs = signs
        self._logs = self._logs + signs * self._sizes
        self._logs[:-1] = np.clip(self._logs[:-1], np.log(0.05), np.log(20.0))
        self._logs[-1] = np.clip(self._logs[-1], _LEAST_NOISE, _MOST_NOISE)


def _squares(a: Floats, b: Floats) -> Floats:
    found: Floats = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2.0 * (a @ b.T)
    return np.maximum(found, 0.0)


def _matern(squares: Floats) -> Floats:
    distance = np.sqrt(5.0 * squares)
    found: Floats = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
    return found
