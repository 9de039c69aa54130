"""What a fit hands back: the law, how the fit ended, how sure it is, what it used and what it left out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

import numpy as np

from analysis.inputs import is_positive
from analysis.laws import LAWS, FloatArray, Law, parameters

LawT = TypeVar("LawT", bound=Law, covariant=True)


class Status(StrEnum):
    """How a fit ended. Only CONVERGED may be quoted without its caveat."""

    CONVERGED = "CONVERGED"
    BOUND_HIT = "BOUND_HIT"
    NOT_IDENTIFIED = "NOT_IDENTIFIED"
    NO_PROGRESS = "NO_PROGRESS"
    MAX_ITER = "MAX_ITER"


class Reason(StrEnum):
    """Why a point is not part of a fit."""

    NOT_BEST_LR = "not_best_lr"
    NOT_FULLY_DECAYED = "not_fully_decayed"
    NOT_DONE = "not_done"
    DIVERGED = "diverged"
    NO_LOSS = "no_loss"
    OFF_ENVELOPE = "off_envelope"
    TOO_FEW_SIZES = "too_few_sizes_at_this_budget"
    CONCAVE = "concave_isoflop"
    OUTSIDE_GRID = "optimum_outside_grid"
    HELD_OUT = "held_out"
    DUPLICATE = "duplicate"


class Caveat(StrEnum):
    """The kinds of warning a fit or an advice can carry."""

    OPTIMUM_OUTSIDE_GRID = "optimum_outside_grid"
    CONCAVE_ISOFLOP = "concave_isoflop"
    FEW_BUDGETS = "few_budgets"
    PERFECT_BY_CONSTRUCTION = "perfect_by_construction"
    E_AT_ZERO = "e_at_zero"
    E_ABOVE_SMALLEST_LOSS = "e_above_smallest_loss"
    START_RETURNED = "start_returned"
    FEW_SIZES = "few_sizes"
    WIDE_INTERVAL = "wide_interval"
    NOT_FULLY_DECAYED = "not_fully_decayed"
    LR_AT_EDGE = "lr_at_edge"
    FEW_DECAY_STEPS = "few_decay_steps"
    MANY_EPOCHS = "many_epochs"
    WITHIN_SEED_NOISE = "within_seed_noise"
    CHOICE_BIAS = "choice_bias"
    NOISE_ASSUMED = "noise_assumed"
    PARABOLA_BIAS = "parabola_bias"
    APPROACHES_DISAGREE = "approaches_disagree"
    INFLUENTIAL_POINTS = "influential_points"
    CONVENTION_CHANGES_EXPONENT = "convention_changes_exponent"
    EXTRAPOLATION = "extrapolation"
    NO_FLOOR = "no_floor"
    NO_LADDER = "no_ladder"
    BACKTEST_DRIFT = "backtest_drift"
    NO_LOSS = "no_loss"
    DUPLICATE_ROWS = "duplicate_rows"
    UNITS = "units"
    OUTLIER_LOSS = "outlier_loss"
    REPEATS = "repeats"
    OFF_LAW = "off_law"
    LACK_OF_FIT = "lack_of_fit"


@dataclass(frozen=True, kw_only=True)
class Warn:
    """One warning: its kind (for programs), a sentence (for people), the points it is about."""

    kind: Caveat
    detail: str
    points: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A two-sided interval at `level` and the standard error of the quantity. Infinite ends mean unbounded."""

    low: float
    high: float
    level: float
    se: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @classmethod
    def of(cls, draws: FloatArray, level: float) -> Interval:
        """Percentile interval of bootstrap draws, shape (draws,). The SE is their standard deviation."""
        if not 0 < level < 1:
            raise ValueError(f"level={level} is not between 0 and 1: pass e.g. .9 for a 90 % interval")
        finite = bool(np.isfinite(draws).all())
        # Between two infinite draws there is no interpolating.
        low, high = np.quantile(
            draws, [(1 - level) / 2, (1 + level) / 2], method="linear" if finite else "inverted_cdf"
        )
        se = float(np.std(draws, ddof=1)) if finite else np.inf
        return cls(low=float(low), high=float(high), level=level, se=se)

    @classmethod
    def unbounded(cls, level: float) -> Interval:
        """Nothing is known."""
        return cls(low=-np.inf, high=np.inf, level=level, se=np.inf)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Loss (or whatever the law gives) at one place.

    `interval` is of the law's mean there (None without draws). `extrapolation` maps each input to how many times it
    lies beyond the fitted range (1 inside it).
    """

    value: float
    interval: Interval | None
    extrapolation: dict[str, float]

    @property
    def beyond(self) -> float:
        """The largest of the extrapolation factors."""
        return max(self.extrapolation.values(), default=1.0)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Fit(Generic[LawT]):
    """A law with the evidence for it.

    objective: the minimised value, summed over points. agreement: share of the starts that ended in the best minimum
    (relative 1e-6 of the objective; 1 for closed-form fits). intervals: parameter or derived quantity -> interval.
    used, left_out: ids of points, the latter with a reason. draws: bootstrap parameters, name -> shape (draws,); empty
    without a bootstrap, and where too few sizes or budgets leave the law open.
    domain: input name -> (smallest, largest) used; of a surface also flops (6 N D unless the points
    state theirs). noise: residual standard deviation of log y, corrected for the number of fitted parameters.
    """

    law: LawT
    status: Status
    objective: float
    agreement: float = 1.0
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    used: tuple[str, ...] = ()
    left_out: Mapping[str, Reason] = field(default_factory=dict)
    warnings: tuple[Warn, ...] = ()
    draws: Mapping[str, FloatArray] = field(default_factory=dict)
    domain: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    noise: float = float("nan")
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Law, status, intervals, counts; not the draws and ids, which would fill screens."""
        law = ", ".join(f"{name}={value:.5g}" for name, value in parameters(self.law).items())
        parts = [
            f"{type(self.law).__name__}({law}): {self.status}",
            *(f"{name} [{span.low:.4g}, {span.high:.4g}] ({span.level:.0%})" for name, span in self.intervals.items()),
            f"{len(self.used)} points used, {len(self.left_out)} left out, "
            f"{max(map(len, self.draws.values()), default=0)} draws",
        ]
        kinds = ", ".join(dict.fromkeys(warn.kind for warn in self.warnings))
        return f"<Fit {'; '.join(parts)}{f'; warnings: {kinds}' if kinds else ''}>"

    def __eq__(self, other: object) -> bool:
        """Whether both would be saved as the same text: equal in every number, draws included."""
        return isinstance(other, Fit) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def has(self, kind: Caveat) -> bool:
        """Whether a warning of this kind was raised."""
        return any(warn.kind == kind for warn in self.warnings)

    @property
    def determined(self) -> bool:
        """Whether the points determine the law at all; else its numbers are where the solver happened to stop."""
        return self.status != Status.NOT_IDENTIFIED or bool(self.draws)

    @property
    def law_draws(self) -> Law | None:
        """The law once per bootstrap draw, as one object whose parameters are arrays; None without a bootstrap."""
        return type(self.law)(**self.draws) if self.draws else None

    def interval(self, quantity: Any, level: float = 0.9) -> Interval | None:
        """Interval of any quantity of the law, e.g. `fit.interval(lambda law: law.n_opt(1e21))`.

        None without a bootstrap; unbounded where the fit is not identified for want of sizes or budgets, and so has
        no draws that mean anything.
        """
        draws = self.law_draws
        if draws is None:
            return Interval.unbounded(level) if self.status == Status.NOT_IDENTIFIED else None
        # A draw far out may overflow: then that end of the interval is infinite, and says so.
        with np.errstate(over="ignore"):
            return Interval.of(np.asarray(quantity(draws), float), level)

    def extrapolation(self, **inputs: float) -> dict[str, float]:
        """How many times each input lies beyond the range of the points used; 1 inside it."""
        factors = {}
        for name, value in inputs.items():
            low, high = self.domain[name]
            factors[name] = float(max(value / high, low / value, 1.0))
        return factors

    def predict(self, *inputs: float, level: float = 0.9) -> Prediction:
        """The law at `inputs` (n, d for a surface; flops for a path; x for a power law).

        ValueError if the number of inputs is not the law's, or one is not a positive finite number.
        """
        names = self.law.inputs
        if len(inputs) != len(names):
            raise ValueError(f"{type(self.law).__name__} takes {', '.join(names)}; got {len(inputs)} values")
        if not all(is_positive(value) for value in inputs):
            raise ValueError(f"inputs must be positive finite numbers, got {inputs}")
        law: Any = self.law
        return Prediction(
            value=float(law(*inputs)),
            interval=self.interval(lambda drawn: drawn(*inputs), level),
            extrapolation=self.extrapolation(**dict(zip(names, inputs, strict=True))),
        )

    def to_json(self) -> str:
        """JSON at full precision: `from_json` gives back an equal Fit.

        Floats are written by repr; nan and infinite ones, which JSON does not know, as texts.
        """
        return json.dumps(
            {
                "form": self.law.form,
                "law": _texts(parameters(self.law)),
                "status": self.status,
                "objective": _texts(self.objective),
                "agreement": self.agreement,
                "intervals": {k: _texts(vars(v)) for k, v in self.intervals.items()},
                "used": self.used,
                "left_out": self.left_out,
                "warnings": [vars(w) for w in self.warnings],
                "draws": {k: _texts(np.asarray(v).tolist()) for k, v in self.draws.items()},
                "domain": _texts(self.domain),
                "noise": _texts(self.noise),
                "settings": _texts(self.settings),
            },
            allow_nan=False,
        )

    @staticmethod
    def from_json(text: str) -> Fit[Any]:
        """The Fit that `to_json` wrote. ValueError with the remedy for any other text."""
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"no JSON ({error}): pass the text that Fit.to_json wrote") from error
        if isinstance(raw, dict) and isinstance(raw.get("fits"), dict):
            raise ValueError(
                f"this is a report's fit.json, which holds the fits {', '.join(sorted(raw['fits']))}: "
                "pass one of them, json.dumps(json.loads(text)['fits'][NAME])"
            )
        missing = sorted(_SAVED - set(raw)) if isinstance(raw, dict) else sorted(_SAVED)
        if missing:
            raise ValueError(f"no saved Fit: it lacks {', '.join(missing)}; pass the text that Fit.to_json wrote")
        if raw["form"] not in LAWS:
            raise ValueError(f"form={raw['form']!r} is not one of {sorted(LAWS)}: written by another version?")
        try:
            return _fit(raw)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"a damaged Fit ({error!r}): write it again with Fit.to_json") from error


_SAVED = {"form", "law"} | {f.name for f in dataclasses.fields(Fit)}


def _fit(raw: dict[str, Any]) -> Fit[Any]:
    """The Fit of a parsed `to_json`."""
    return Fit(
        law=LAWS[raw["form"]](**_floats(raw["law"])),
        status=Status(raw["status"]),
        objective=_floats(raw["objective"]),
        agreement=raw["agreement"],
        intervals={k: Interval(**_floats(v)) for k, v in raw["intervals"].items()},
        used=tuple(raw["used"]),
        left_out={k: Reason(v) for k, v in raw["left_out"].items()},
        warnings=tuple(
            Warn(kind=Caveat(w["kind"]), detail=w["detail"], points=tuple(w["points"])) for w in raw["warnings"]
        ),
        draws={k: np.asarray(_floats(v), float) for k, v in raw["draws"].items()},
        domain={k: (v[0], v[1]) for k, v in _floats(raw["domain"]).items()},
        noise=_floats(raw["noise"]),
        settings=_floats(raw["settings"]),
    )


_NOT_IN_JSON = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def _texts(value: Any) -> Any:
    """`value` with every float that JSON does not know as its text."""
    if isinstance(value, Mapping):
        return {k: _texts(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(v) for v in value]
    return str(float(value)) if isinstance(value, float) and not np.isfinite(value) else value


def _floats(value: Any) -> Any:
    """Inverse of `_texts`."""
    if isinstance(value, dict):
        return {k: _floats(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_floats(v) for v in value]
    return _NOT_IN_JSON.get(value, value) if isinstance(value, str) else value
