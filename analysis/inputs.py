"""What every fit asks of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from analysis.laws import FloatArray


def is_positive(value: object) -> bool:
    """Whether `value` is one positive finite number."""
    return isinstance(value, Real) and 0 < float(value) < float("inf")


def positive(name: str, values: ArrayLike) -> FloatArray:
    """`values` as a float vector; ValueError naming the first that is not a positive finite number."""
    try:
        array = np.asarray(values, float)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} must be numbers: {error}") from error
    if array.ndim != 1 or not len(array):
        raise ValueError(f"{name} must be a non-empty vector, got shape {array.shape}")
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0)))
    if len(bad):
        raise ValueError(
            f"{name}[{bad[0]}] = {array[bad[0]]} is not a positive finite number ({len(bad)} such values): leave it out"
        )
    return array


def point_ids(ids: Sequence[str] | None, n_points: int) -> tuple[str, ...]:
    """The ids given, or "row 0", "row 1", ...; ValueError unless there is one a point."""
    if ids is None:
        return tuple(f"row {i}" for i in range(n_points))
    if len(ids) != n_points:
        raise ValueError(f"ids has {len(ids)} values for {n_points} points")
    return tuple(ids)
