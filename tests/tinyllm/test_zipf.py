import math

import numpy as np
import pytest

from tinyllm.zipf import ZipfChain

CHAINS = [ZipfChain(vocab_size=32), ZipfChain(vocab_size=32, s=1.0, seed=3), ZipfChain(vocab_size=32, order2=0.5)]


def test_published_entropy():
    """V = 256, s = 1.5: ln Z + s * sum q ln r = 2.71415 nats."""
    chain = ZipfChain()
    r = np.arange(1, 257)
    z = (r**-1.5).sum()
    assert chain.entropy == pytest.approx(math.log(z) + 1.5 * ((r**-1.5 / z) * np.log(r)).sum(), rel=1e-12)
    assert chain.entropy == pytest.approx(2.71415, abs=1e-5)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_perfect_model_loses_the_entropy(chain):
    losses = chain.losses(np.arange(2000), 129, 0)
    standard_error = losses.std() / math.sqrt(losses.size)
    assert losses.mean() == pytest.approx(chain.entropy, abs=4 * standard_error)


@pytest.mark.parametrize("chain", CHAINS)
def test_counts_of_the_ids_alone_show_the_entropy(chain):
    """An estimate that knows nothing of how ids are made: conditional entropy from counts of the two ids before."""
    ids = chain.rows(np.arange(12000), 130, 0).astype(np.int64)
    counts = np.zeros((32, 32, 32))
    np.add.at(counts, (ids[:, :-2].ravel(), ids[:, 1:-1].ravel(), ids[:, 2:].ravel()), 1)
    total = counts.sum(-1, keepdims=True)
    p = counts / np.maximum(total, 1)
    entropy = -(counts * np.log(np.where(counts > 0, p, 1))).sum() / counts.sum()
    # Miller-Madow: each context's estimate is low by (seen ids - 1) / 2n.
    bias = ((counts > 0).sum(-1) - 1).clip(0).sum() / (2 * counts.sum())
    assert entropy + bias == pytest.approx(chain.entropy, abs=0.01)


def test_the_second_order_hides_from_the_first():
    """Given one id before, the mixed chain looks more random than it is: the false plateau."""

    def first_order_entropy(chain):
        ids = chain.rows(np.arange(4000), 129, 0).astype(np.int64)
        counts = np.zeros((32, 32))
        np.add.at(counts, (ids[:, :-1].ravel(), ids[:, 1:].ravel()), 1)
        p = counts / counts.sum(-1, keepdims=True)
        return -(counts * np.log(np.where(counts > 0, p, 1))).sum() / counts.sum()

    assert first_order_entropy(CHAINS[0]) == pytest.approx(CHAINS[0].entropy, abs=0.02)
    assert first_order_entropy(CHAINS[2]) > CHAINS[2].entropy + 0.2


@pytest.mark.parametrize("chain", CHAINS)
def test_a_row_does_not_depend_on_its_neighbours(chain):
    together = chain.rows(np.arange(50), 20, 5)
    assert chain.rows(np.array([31]), 20, 5)[0].tolist() == together[31].tolist()
    assert chain.rows(np.arange(50), 10, 5).tolist() == together[:, :10].tolist()
    assert chain.rows(np.arange(50), 20, 6).tolist() != together.tolist()


def test_every_context_has_a_permutation_of_its_own():
    table = ZipfChain(vocab_size=64)._order1
    assert (np.sort(table, axis=1) == np.arange(64)).all()
    assert len({tuple(row) for row in table.tolist()}) == 64


def test_source_string_comes_back():
    chain = ZipfChain(vocab_size=100, s=1.25, order2=0.5, seed=7)
    assert ZipfChain.parse(chain.source, seed=7) == chain
    assert ZipfChain.parse("zipf", vocab_size=64) == ZipfChain(vocab_size=64)
    assert ZipfChain.parse("zipf:s=2") == ZipfChain(s=2.0)


@pytest.mark.parametrize(
    ("source", "vocab_size", "message"),
    [
        ("zipf:V=64", 32, "says V=64, --vocab-size says 32"),
        ("zipf:W=64", None, "'W=64' is not understood; write zipf:V=256"),
        ("zipf:V=1", None, "V=1: give 2 to 4096"),
        ("zipf:V=512,order2=0.5", None, "V=512: give 2 to 256"),
        ("zipf:order2=2", None, "order2=2.0: a share"),
    ],
)
def test_mistakes_are_named(source, vocab_size, message):
    with pytest.raises(ValueError, match=message):
        ZipfChain.parse(source, vocab_size=vocab_size)
