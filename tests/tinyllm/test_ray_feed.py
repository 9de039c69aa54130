"""The feed by Ray Data gives the stream of the plain one, from anywhere, also where training holds every CPU."""

from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import ray.train
from ray.train.torch import TorchTrainer

from tinyllm.corpus import prepare
from tinyllm.data import Corpus, Feed
from tinyllm.order import TokenDigest
from tinyllm.ray_feed import RayFeed, WholeDataConfig, token_dataset

pytestmark = pytest.mark.usefixtures("local_ray")

SEED, BATCH_ROWS, N_BATCHES = 3, 12, 40
FEED = {"batch_rows": BATCH_ROWS, "start": 1000}


@pytest.fixture(scope="module")
def text(local_ray, tmp_path_factory):
    directory = tmp_path_factory.mktemp("text")
    words = np.random.default_rng(0).choice(["spam", "eggs", "ham", "toast"], (100, 300))
    pq.write_table(pa.table({"text": [" ".join(row) for row in words.tolist()]}), directory / "text.parquet")
    path = str(directory / "corpus")
    prepare(str(directory / "text.parquet"), path, vocab_size=260, seq_len=32, val_fraction=0.1)
    return path


@pytest.fixture(scope="module")
def zipf(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("zipf"))
    prepare("zipf:V=32", path, seq_len=32)
    return path


def digest_of(feed):
    digest = TokenDigest()
    with feed:
        for positions, rows in islice(feed, N_BATCHES):
            digest.add(positions, rows)
    return digest


@pytest.mark.parametrize(
    ("source", "start", "rank", "world_size", "n"),
    [("text", 0, 0, 1, 3000), ("text", 10**9, 3, 4, 20), ("text", 7, 1, 2, 20), ("zipf", 5, 0, 1, 20)],
)
def test_batch_by_batch_the_same(source, start, rank, world_size, n, request):
    """3000 batches are several blocks and epochs; position 10^9 is many epochs away."""
    path = request.getfixturevalue(source)
    where = {"batch_rows": BATCH_ROWS, "start": start, "rank": rank, "world_size": world_size}
    with (
        RayFeed(token_dataset(path, seed=SEED), **where) as ours,
        Feed(Corpus.open(path), seed=SEED, **where) as plain,
    ):
        for (positions, rows), (expected_positions, expected_rows) in islice(zip(ours, plain, strict=True), n):
            assert np.array_equal(positions, expected_positions)
            assert np.array_equal(rows, expected_rows)


def test_an_error_of_the_task_reaches_the_consumer(tmp_path):
    dataset = token_dataset(str(tmp_path / "nowhere"), seed=SEED)
    with RayFeed(dataset, **FEED) as feed, pytest.raises(ValueError, match="no corpus at"):
        next(feed)


def test_a_batch_that_does_not_divide_is_refused(text):
    with pytest.raises(ValueError, match="12 rows does not divide among 5 ranks"):
        RayFeed(token_dataset(text, seed=SEED), world_size=5, **FEED)


def test_ranks_of_a_trainer_read_their_shares_though_they_hold_every_cpu(text, tmp_path):
    def read_share(settings):
        context = ray.train.get_context()
        rank, world_size = context.get_world_rank(), context.get_world_size()
        assert ray.available_resources().get("CPU", 0) == 0
        shard = ray.train.get_dataset_shard("train")
        digest = digest_of(RayFeed(shard, rank=rank, world_size=world_size, **FEED))
        (settings["out"] / f"{rank}-of-{world_size}").write_text(digest.hex)

    TorchTrainer(
        read_share,
        train_loop_config={"out": tmp_path},
        datasets={"train": token_dataset(text, seed=SEED)},
        dataset_config=WholeDataConfig(),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(storage_path=str(tmp_path / "storage")),
    ).fit()
    total = TokenDigest()
    for rank in range(2):
        total.merge(int((tmp_path / f"{rank}-of-2").read_text(), 16))
    assert total.value == digest_of(Feed(Corpus.open(text), seed=SEED, **FEED)).value
