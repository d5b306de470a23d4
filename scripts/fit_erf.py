"""Fits erf(x) = x P(x^2) / Q(x^2) on |x| <= 4 for src/ops/fast.rs and shaders/lib/math.wgsl.

Iteratively reweighted linear least squares in double precision (Sanathanan and Koerner 1963), then rounded to
single precision and checked there. Needs numpy alone.
"""
from math import erf

import numpy as np

LIMIT, P, Q = 3.925, 6, 4

x = LIMIT * np.sin(np.linspace(1e-3, np.pi / 2, 4000))
y = np.array([erf(v) for v in x])
z = x * x
p_terms = np.stack([x * z**i for i in range(P + 1)], 1)
q_terms = np.stack([y * z**i for i in range(1, Q + 1)], 1)
weight = 1 / y
best = None
for _ in range(60):
    a = np.concatenate([p_terms, -q_terms], 1) * weight[:, None]
    scale = np.abs(a).max(0)
    solution = np.linalg.lstsq(a / scale, y * weight, rcond=None)[0] / scale
    p, q = solution[: P + 1], np.concatenate([[1], solution[P + 1 :]])
    den = sum(c * z**i for i, c in enumerate(q))
    err = np.abs((p_terms @ p / den - y) / y)
    if best is None or err.max() < best[0]:
        best = (err.max(), p, q)
    # Lawson's step: weigh the worst points up, which leads towards the minimax fit.
    weight = (1 / y) / den * np.sqrt(err / err.mean() + 1e-3) ** 0.5

_, p, q = best
p, q = p.astype(np.float32), q.astype(np.float32)


def erf32(v):
    v = np.clip(v.astype(np.float32), np.float32(-LIMIT), np.float32(LIMIT))
    s = v * v
    num, den = np.float32(0), np.float32(0)
    for c in p[::-1]:
        num = num * s + c
    for c in q[::-1]:
        den = den * s + c
    return v * num / den


check = np.linspace(-6, 6, 400001).astype(np.float32)
want = np.array([erf(float(v)) for v in check])
print("max absolute error in f32:", np.abs(erf32(check).astype(float) - want).max())
rel = np.abs(erf32(check).astype(float) - want) / np.maximum(np.abs(want), 1e-30)
print("max relative error in f32:", rel[np.abs(check) > 1e-20].max(), " max |erf32|:", np.abs(erf32(check)).max())
print("P =", [f"{float(c):.9e}" for c in p])
print("Q =", [f"{float(c):.9e}" for c in q])
