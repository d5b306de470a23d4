#!/usr/bin/env python3
"""Fits the constants of erf and exp in src/ops/fast.rs and shaders/lib/math.wgsl, and prints their error in f32.

erf(x) = x P(x^2) / Q(x^2) on |x| < 4 (beyond, erf rounds to 1): weighted linear least squares on the
linearised ratio, weights raised where the relative error is large until it levels out (Loeb, then Lawson).
exp(r) = 1 + r + r^2 p(r) on |r| <= ln(2)/2, in the same way.
"""
import math

import numpy as np


def level(columns, target, divide, rounds):
    """Coefficients c with columns @ c ~ target, the largest weighted residual as small as possible."""
    lawson = np.ones_like(target)
    denominator = np.ones_like(target)
    best = (np.inf, None)
    for _ in range(rounds):
        weight = lawson / np.abs(denominator)
        c, *_ = np.linalg.lstsq(columns * weight[:, None], target * weight, rcond=None)
        error, denominator = divide(c)
        worst = error.max()
        if worst < best[0]:
            best = (worst, c)
        lawson *= np.sqrt(error / worst + 1e-3)
        lawson /= lawson.mean()
    return best


def nodes(low, high, n=6000):
    return low + (high - low) * 0.5 * (1 - np.cos(np.pi * (np.arange(n) + 0.5) / n))


def fit_erf(p=5, q=5, end=4.0):
    x = nodes(1e-4, end)
    z = (x / end) ** 2
    f = np.vectorize(math.erf)(x) / x
    up = z[:, None] ** np.arange(p + 1)
    down = z[:, None] ** np.arange(1, q + 1)

    def divide(c):
        denominator = 1 + down @ c[p + 1 :]
        return np.abs(up @ c[: p + 1] / denominator / f - 1), denominator

    columns = np.concatenate([up / f[:, None], -down], axis=1)
    _, c = level(columns, np.ones_like(x), divide, 200)
    scale = end ** -2.0
    top = c[: p + 1] * scale ** np.arange(p + 1)
    bottom = np.concatenate([[1.0], c[p + 1 :]]) * scale ** np.arange(q + 1)
    return top, bottom


def fit_exp(degree=4):
    r = nodes(-0.5 * math.log(2), 0.5 * math.log(2))
    powers = r[:, None] ** np.arange(2, degree + 3)

    def divide(c):
        return np.abs((1 + r + powers @ c) / np.exp(r) - 1), np.ones_like(r)

    columns = powers / np.exp(r)[:, None]
    _, c = level(columns, 1 - (1 + r) / np.exp(r), divide, 200)
    return c


def horner(coefficients, x):
    """In f32, one rounding per operation, as the kernels compute it."""
    y = np.full_like(x, np.float32(coefficients[-1]))
    for c in coefficients[-2::-1]:
        y = y * x + np.float32(c)
    return y


def ulps(got, want):
    return np.abs(got.astype(np.float64) - want) / np.spacing(want.astype(np.float32)).astype(np.float64)


top, bottom = fit_erf()
x = np.linspace(1e-3, 4.0, 1_000_001).astype(np.float32)
z = x * x
got = x * horner(top, z) / horner(bottom, z)
want = np.vectorize(math.erf)(x.astype(np.float64))
print("erf P", ", ".join(f"{c:.9e}" for c in top))
print("erf Q", ", ".join(f"{c:.9e}" for c in bottom))
error = ulps(got, want)
print(f"largest error {error.max():.2f} ulp at {x[error.argmax()]:.4f}, absolute {np.abs(got - want).max():.2e}")

poly = fit_exp()
r = np.linspace(-0.5 * math.log(2), 0.5 * math.log(2), 1_000_001).astype(np.float32)
got = r * r * horner(poly, r) + r + np.float32(1)
print("exp p", ", ".join(f"{c:.9e}" for c in poly))
print(f"largest error {ulps(got, np.exp(r.astype(np.float64))).max():.2f} ulp")
