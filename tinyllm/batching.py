"""How a global batch is cut for ranks and devices; nothing here changes what is learned."""

from __future__ import annotations

from tinyllm.config import ModelConfig, TrainConfig
from tinyllm.plan import Plan

# Tokens taken at once when nobody says: a CPU gains nothing from more, a GPU is sized by its memory.
CPU_TOKENS = 8192
# Bytes kept for backward a token and layer, in units of the width: 80.25 and 54.25 by `python -m benchmarks.step`,
# which counts what autograd saves. In bf16 the residual stream and its norms stay in fp32. torch.compile keeps less.
ACTIVATION_BYTES_PER_WIDTH = {"fp32": 80, "bf16": 54}
MEMORY_SHARE = 0.6  # of what the state leaves; the rest is for the loss, temporaries and fragmentation


def activation_bytes(model: ModelConfig, precision: str, rows: int) -> int:
    """Rough memory of the activations of `rows` rows, in bytes."""
    per_token = ACTIVATION_BYTES_PER_WIDTH[precision] * model.width * model.depth
    return rows * model.context * per_token


def state_bytes(model: ModelConfig, optimizer: str) -> int:
    """Weights, gradients and optimizer state in fp32, in bytes."""
    c = model.counts
    hidden = c.attention + c.mlp
    moments = 2 * c.total - (hidden if optimizer == "muon" else 0)  # Muon keeps one momentum, AdamW two
    return 4 * (c.total * 2 + moments)


def too_large(
    model: ModelConfig, optimizer: str, precision: str, memory_bytes: int, where: str, *, copies: int = 1
) -> str | None:
    """Why a model cannot be trained in that memory, with the remedy; None where it may fit.

    Counts weights, gradients, optimizer state and the activations of a single row, `copies` times (ranks that share
    the memory).
    """
    needed = copies * (state_bytes(model, optimizer) + activation_bytes(model, precision, rows=1))
    if needed <= memory_bytes:
        return None
    return (
        f"needs about {needed / 1e9:.1f} GB with a single row, {where} has {memory_bytes / 1e9:.1f} GB: "
        "take a smaller depth or a larger device"
    )


def device_rows(plan: Plan, config: TrainConfig, world_size: int, asked: int | None, memory_bytes: float | None) -> int:
    """Rows a rank takes at once: as asked, else the largest divisor of its share that fits beside the state.

    `memory_bytes` is what there is of the device's memory, None for a CPU. Raises ValueError with what would divide.
    """
    model = config.model
    if plan.batch_rows % world_size:
        fitting = [k for k in range(1, plan.batch_rows + 1) if plan.batch_rows % k == 0]
        raise ValueError(
            f"a batch of {plan.batch_rows} rows does not divide among {world_size} ranks: take one of {fitting} ranks, "
            f"or --total-batch-size {-(-plan.batch_rows // world_size) * world_size * model.context}"
        )
    share = plan.batch_rows // world_size
    divisors = [k for k in range(1, share + 1) if share % k == 0]
    if asked is not None:
        if share % asked:
            raise ValueError(
                f"--device-batch-size {asked} does not divide the {share} rows of a rank "
                f"({plan.batch_rows} rows a batch, {world_size} ranks): take one of {divisors}"
            )
        return asked
    if memory_bytes is None:
        fitting = [k for k in divisors if k * model.context <= CPU_TOKENS]
    else:
        room = MEMORY_SHARE * (memory_bytes - state_bytes(model, config.optim.optimizer))
        fitting = [k for k in divisors if activation_bytes(model, config.precision, k) <= room]
    return max(fitting, default=1)
