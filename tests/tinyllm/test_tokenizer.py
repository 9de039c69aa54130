import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.tokenizer import BOS, Tokenizer

TEXTS = [f"It was year {n}; we've seen {n * n} such years, dear reader. Ünïcode too: 漢字" for n in range(300)]
TOKENIZER = Tokenizer.train(TEXTS, 380)


@given(st.text())
def test_any_text_comes_back(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert int(TOKENIZER.token_bytes[ids].sum()) == len(text.encode())


def test_text_that_looks_like_a_special_token_is_text():
    ids = TOKENIZER.encode(f"a {BOS} b")
    assert TOKENIZER.bos_id not in ids
    assert TOKENIZER.decode(ids) == f"a {BOS} b"


def test_only_bos_has_no_bytes():
    assert (TOKENIZER.token_bytes == 0).nonzero()[0].tolist() == [TOKENIZER.bos_id]
    assert TOKENIZER.decode([TOKENIZER.bos_id, *TOKENIZER.encode("a")]) == "a"


def test_training_again_and_loading_give_the_same():
    again = Tokenizer.train(TEXTS, 380)
    assert again.digest == TOKENIZER.digest
    loaded = Tokenizer.from_json(TOKENIZER.to_json())
    assert loaded.digest == TOKENIZER.digest
    assert loaded.encode(f"{BOS} dear reader") == TOKENIZER.encode(f"{BOS} dear reader")
    assert loaded.vocab_size == 380


def test_digits_are_cut_in_pairs():
    many = Tokenizer.train([f"{n} 2024 2024 2024" for n in range(300)], 300)
    assert [many.decode([i]) for i in many.encode("2024")] == ["20", "24"]


@pytest.mark.parametrize(
    ("vocab_size", "message"),
    [(256, "--vocab-size 256 is below 257"), (5000, r"--vocab-size 5000 is more than this text can fill: .* \d+ tok")],
)
def test_a_vocabulary_out_of_range_is_refused(vocab_size, message):
    with pytest.raises(ValueError, match=message):
        Tokenizer.train(TEXTS, vocab_size)
