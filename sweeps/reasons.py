"""What a trial died of, in a line."""

from __future__ import annotations

from ray.exceptions import RayActorError, RayTaskError
from ray.train import WorkerGroupError

DIED = (
    "its process was killed or crashed, as happens where memory runs out: try fewer --slots or a smaller "
    "--device-batch-size"
)


def reason_of(error: BaseException | None) -> str:
    """The cause of what Ray raised for a trial: type and text on one line; of a worker group, what its ranks died of.

    The rank that failed first is not known: the others then fail to reach it.
    """
    if isinstance(error, WorkerGroupError):
        ranks: dict[str, list[int]] = {}
        for rank, failure in sorted(error.worker_failures.items()):
            # A worker that no longer answers comes wrapped.
            ranks.setdefault(reason_of(getattr(failure, "health_check_failure", failure)), []).append(rank)
        return "; ".join(f"rank {', '.join(map(str, found))}: {reason}" for reason, found in ranks.items())
    if isinstance(error, RayTaskError):
        error = error.cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RayActorError):
        why = next((line for line in lines if line.startswith("The actor is dead")), lines[-1])
        # What follows is a list of causes, which ours stands for.
        why = why.partition(" Some common causes")[0]
        return f"{DIED}; Ray says: {why}" if "its worker process has died" in why else why
    if lines and lines[0].startswith("Traceback"):  # Ray Train's wrapper of what a worker raised
        return lines[-1]
    return " ".join([f"{type(error).__name__}:", *lines])
