"""The laws, as values: frozen parameters with the few formulas that follow from them.

Units everywhere: N in parameters, D in tokens, C in FLOPs, loss in nats per token (or whatever unit was fitted).
Every field may also hold an array of bootstrap draws: the formulas broadcast, so one object can be "4,000 laws".
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Number = Any
"""A float, or an array that broadcasts against the law's parameters."""


@dataclass(frozen=True, kw_only=True)
class LossSurface:
    """L(N, D) = E + A / N^alpha + B / D^beta  (Hoffmann et al. 2022, approach 3).

    `n_opt` and `d_opt` are the closed form of the minimum of L under C = 6 N D (their equation 4). A model whose
    exact FLOPs per token differ from 6 N has another optimum: see `analysis.advise.optimum`.
    """

    form: ClassVar[str] = "chinchilla"
    inputs: ClassVar[tuple[str, ...]] = ("n", "d")
    A: Number
    B: Number
    E: Number
    alpha: Number
    beta: Number

    @property
    def a(self) -> Number:
        """Exponent of N*(C) = G (C/6)^a."""
        return self.beta / (self.alpha + self.beta)

    @property
    def b(self) -> Number:
        """Exponent of D*(C) = (C/6)^b / G."""
        return self.alpha / (self.alpha + self.beta)

    def loss(self, n: Number, d: Number) -> Number:
        """Loss at `n` parameters and `d` tokens."""
        log_n, log_d = np.log(n), np.log(d)
        return self.E + self.A * np.exp(-self.alpha * log_n) + self.B * np.exp(-self.beta * log_d)

    def n_opt(self, c: Number) -> Number:
        """Parameters that minimise the loss at `c` FLOPs, under C = 6 N D."""
        log_g = np.log(self.alpha * self.A / (self.beta * self.B)) / (self.alpha + self.beta)
        return np.exp(log_g + self.a * np.log(np.divide(c, 6)))

    def d_opt(self, c: Number) -> Number:
        """Tokens that minimise the loss at `c` FLOPs, under C = 6 N D."""
        return np.divide(c, 6) / self.n_opt(c)

    def __call__(self, n: Number, d: Number) -> Number:
        return self.loss(n, d)


@dataclass(frozen=True, kw_only=True)
class KaplanSurface:
    """L(N, D) = [(n_c / N)^(alpha_n / alpha_d) + d_c / D]^alpha_d  (Kaplan et al. 2020, equation 1.5). No floor."""

    form: ClassVar[str] = "kaplan"
    inputs: ClassVar[tuple[str, ...]] = ("n", "d")
    n_c: Number
    d_c: Number
    alpha_n: Number
    alpha_d: Number

    @property
    def a(self) -> Number:
        """Exponent of N*(C): 1 / (1 + alpha_n / alpha_d)."""
        return 1 / (1 + self.alpha_n / self.alpha_d)

    @property
    def b(self) -> Number:
        """Exponent of D*(C)."""
        return 1 - self.a

    def loss(self, n: Number, d: Number) -> Number:
        """Loss at `n` parameters and `d` tokens."""
        r = self.alpha_n / self.alpha_d
        return (np.exp(r * np.log(self.n_c / n)) + self.d_c / d) ** self.alpha_d

    def n_opt(self, c: Number) -> Number:
        """Parameters that minimise the loss at `c` FLOPs, under C = 6 N D: N^(1+r) = r n_c^r C / (6 d_c)."""
        r = self.alpha_n / self.alpha_d
        return np.exp((np.log(r) + r * np.log(self.n_c) + np.log(np.divide(c, 6)) - np.log(self.d_c)) / (1 + r))

    def d_opt(self, c: Number) -> Number:
        """Tokens that minimise the loss at `c` FLOPs, under C = 6 N D."""
        return np.divide(c, 6) / self.n_opt(c)

    def __call__(self, n: Number, d: Number) -> Number:
        return self.loss(n, d)


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """y = exp(intercept) x^exponent. The intercept is a natural logarithm: a wide draw's coefficient would overflow."""

    form: ClassVar[str] = "power"
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    intercept: Number
    exponent: Number

    @property
    def coef(self) -> Number:
        """exp(intercept): y at x = 1."""
        return np.exp(self.intercept)

    def __call__(self, x: Number) -> Number:
        return np.exp(self.intercept + self.exponent * np.log(x))


@dataclass(frozen=True, kw_only=True)
class OptimalPath:
    """Compute-optimal N*(C), D*(C), L*(C), each exp(intercept) C^exponent: what approaches 1 and 2 estimate."""

    form: ClassVar[str] = "optimal_path"
    inputs: ClassVar[tuple[str, ...]] = ("flops",)
    n_intercept: Number
    n_exponent: Number
    d_intercept: Number
    d_exponent: Number
    loss_intercept: Number
    loss_exponent: Number

    @property
    def a(self) -> Number:
        """Exponent of N*(C)."""
        return self.n_exponent

    @property
    def b(self) -> Number:
        """Exponent of D*(C)."""
        return self.d_exponent

    def n_opt(self, c: Number) -> Number:
        """Parameters at the optimum of `c` FLOPs."""
        return np.exp(self.n_intercept + self.n_exponent * np.log(c))

    def d_opt(self, c: Number) -> Number:
        """Tokens at the optimum of `c` FLOPs."""
        return np.exp(self.d_intercept + self.d_exponent * np.log(c))

    def loss(self, c: Number) -> Number:
        """Lowest loss at `c` FLOPs. A pure power law: it has no floor, so far extrapolation is optimistic."""
        return np.exp(self.loss_intercept + self.loss_exponent * np.log(c))

    def __call__(self, flops: Number) -> Number:
        return self.loss(flops)


@dataclass(frozen=True, kw_only=True)
class Parabola:
    """y = y_min + curvature (log x - log x_min)^2, natural logarithms."""

    form: ClassVar[str] = "parabola"
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    x_min: Number
    y_min: Number
    curvature: Number

    def __call__(self, x: Number) -> Number:
        return self.y_min + self.curvature * (np.log(x) - np.log(self.x_min)) ** 2


@dataclass(frozen=True, kw_only=True)
class LrLaw:
    """Best peak learning rate: lr*(N, D) = exp(intercept) N^n_exponent D^d_exponent."""

    form: ClassVar[str] = "lr"
    inputs: ClassVar[tuple[str, ...]] = ("n", "d")
    intercept: Number
    n_exponent: Number
    d_exponent: Number

    def __call__(self, n: Number, d: Number) -> Number:
        return np.exp(self.intercept + self.n_exponent * np.log(n) + self.d_exponent * np.log(d))


Law = LossSurface | KaplanSurface | PowerLaw | OptimalPath | Parabola | LrLaw
LAWS: dict[str, type[Law]] = {
    cls.form: cls for cls in (LossSurface, KaplanSurface, PowerLaw, OptimalPath, Parabola, LrLaw)
}


def parameters(law: Law) -> dict[str, Number]:
    """The law's parameters by name, in the order of its fields."""
    return {field.name: getattr(law, field.name) for field in dataclasses.fields(law)}
