"""How and where a trial runs. Nothing here changes what is learned (beyond rounding), so nothing here names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tinyllm.flags import Absent

READERS_EVERY = ("eval_every", "sample_every", "core_every", "save_every")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How and where a trial runs. Nothing here changes its losses (beyond rounding), so nothing here names it."""

    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    """auto = CUDA, else Apple's GPU, else the CPU."""
    compile: Absent[bool] = None
    """torch.compile. Default: on for CUDA, off elsewhere."""
    deterministic: bool = False
    """Bit-identical resume on CUDA, slower. The CPU is deterministic without it."""
    device_batch_size: Absent[int] = None
    """Rows a rank takes at once; gradients accumulate up to --total-batch-size. Default: by memory."""
    feed: Literal["files", "ray"] = "files"
    """Who reads the tokens: each rank from the files in a thread, or Ray Data, where other machines read ahead."""
    log_every: int = 10
    """Steps between lines of the log; 0 = off."""
    eval_every: int = 0
    """Steps between evaluations of the trunk; 0 = only where a budget ends."""
    sample_every: int = 0
    """Steps between samples of text; 0 = off."""
    core_data: Absent[str] = None
    """In-context tasks: a directory or URI in the format of DCLM's evaluation, evaluated at the end of each budget."""
    core_every: int = 0
    """Steps between evaluations of --core-data; 0 = only where a budget ends."""
    save_every: Absent[int] = None
    """Steps between checkpoints; 0 = at forks alone. Default: ten in a run of `tinyllm train`, 0 in a sweep's."""
    keep: int = 2
    """Newest checkpoints kept beside those still needed."""
    keep_forks: Literal["all", "last"] = "all"
    """States kept where budgets left the trunk. all = budgets added later go on from one; last = saves disk."""
    save_weights: bool = True
    """Keep the decayed weights of each budget, for `tinyllm sample` and `tinyllm export`."""
    resume_from: Absent[int] = None
    """Continue from the newest checkpoint up to this step instead of the newest of all."""
    stop_after: Absent[int] = None
    """End after this many steps of the trunk without changing the schedule; the same command without it goes on."""
    wandb: Literal["online", "offline", "disabled"] = "disabled"
    """Weights & Biases."""
    wandb_project: str = "tinyllm"
    """Project in Weights & Biases."""
    peak_tflops: Absent[float] = None
    """Peak TFLOP/s of one device in the precision used, for MFU. Default: looked up by the chip's name."""

    def __post_init__(self) -> None:
        for name in ("log_every", "eval_every", "sample_every", "core_every", "save_every"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} {getattr(self, name)} must be 0 (off) or more steps")
        for name in ("device_batch_size", "stop_after", "peak_tflops"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} {value} must be positive")
        if self.core_every and self.core_data is None:
            raise ValueError(f"core_every {self.core_every}: give core_data, the directory of the tasks, as well")
        if self.keep < 1:
            raise ValueError(f"keep {self.keep}: at least the newest checkpoint is kept")

    def due(self, step: int) -> bool:
        """Whether a reader of the events does something at this step that training must not be charged for."""
        return any(every and step % every == 0 for every in (getattr(self, name) for name in READERS_EVERY))
