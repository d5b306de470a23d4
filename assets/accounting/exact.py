"""Makes exact.csv: Renyi divergences of one Poisson-sampled Gaussian step in 30 digits.

Whole orders by the binomial sum (Mironov, Talwar, Zhang 2019, arXiv 1908.10530), others by tanh-sinh quadrature
of A - 1 over pieces one sigma wide. Needs Python and mpmath: python exact.py < rdp.csv > exact.csv
"""

import sys

from mpmath import binomial, expm1, exp, log, log1p, mp, mpf, mpmathify, pi, quad, sqrt

mp.dps = 30

# Large noise with large orders: the mass lies between the two peaks one expects.
MORE = "0.2 50 4096.5|0.5 50 2048.5|0.3 60 4096.5|0.01 30 7000.5|0.5 20 800.5|0.9 5 100.5"


def whole(q, s, a):
    a = int(a)
    total = sum(
        binomial(a, k) * (1 - q) ** (a - k) * q**k * expm1(mpf(k * (k - 1)) / (2 * s * s)) for k in range(2, a + 1)
    )
    return log1p(total) / (a - 1)


def fractional(q, s, a):
    def integrand(z):
        y = q * expm1((2 * z - 1) / (2 * s * s))
        return ((1 + y) ** a - 1 - a * y) * exp(-z * z / (2 * s * s))

    low, high = -15 * s, max(mpf(2), a) + 15 * s
    pieces = int(max(32, (high - low) / s))
    cuts = [low + (high - low) * i / pieces for i in range(pieces + 1)]
    if s < 1:  # The bend of the integrand is s^2 wide.
        bend = mpf(1) / 2 + s * s * log((1 - q) / q)
        cuts += [bend + s * s * k for k in range(-24, 25, 2) if low < bend + s * s * k < high]
    return log1p(quad(integrand, sorted(set(cuts))) / (s * sqrt(2 * pi))) / (a - 1)


rows = [line.split(",")[:3] for line in sys.stdin.read().split("\n")[1:] if line and not line.startswith("#")]
rows += [row.split() for row in MORE.split("|")]
print("q,sigma,alpha,rdp_one_step_exact")
for q, s, a in rows:
    x, y, z = mpmathify(q), mpmathify(s), mpmathify(a)
    value = z / (2 * y * y) if x == 1 else whole(x, y, z) if z == int(z) else fractional(x, y, z)
    print(f"{q},{s},{a},{mp.nstr(value, 17)}", flush=True)
