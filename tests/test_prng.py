"""Random bits from the counter hash: uniform, independent, and the same on every layout."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from msajax.layers.prng import COUNTER_HASH, dropout_key

# Random keys, as fold_in gives them.
ROW_KEYS = np.random.default_rng(0).integers(0, 2**32, (64, 2), np.uint32)


def hash_bits(row_keys, shape):
    keys = jax.random.wrap_key_data(jnp.asarray(row_keys), impl=COUNTER_HASH)
    return jax.jit(jax.vmap(lambda key: jax.random.bits(key, shape)))(keys)


def is_plausible(p_value):
    """Neither improbable nor, as a lattice would be, too good."""
    return 1e-5 < p_value < 1 - 1e-5


def scalar_hash(key, counter):
    """The formula once more, on Python's integers."""

    def mix(x):
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        return x ^ x >> 16

    return mix((mix(counter ^ key[0]) + key[1]) % 2**32)


def test_bits_and_derived_keys_are_those_of_the_formula():
    key = (123456789, 4000000000)
    typed = jax.random.wrap_key_data(jnp.array(key, jnp.uint32), impl=COUNTER_HASH)
    bits = jax.random.bits(typed, (3, 5))
    assert bits.ravel().tolist() == [scalar_hash(key, i) for i in range(15)]
    folded = jax.random.key_data(jax.random.fold_in(typed, 77)).tolist()
    assert folded == [scalar_hash(key, 77), scalar_hash((key[1], key[0] ^ 0xFFFFFFFF), 77)]
    split = jax.random.key_data(jax.random.split(typed, 3)).tolist()
    assert split == [jax.random.key_data(jax.random.fold_in(typed, i)).tolist() for i in range(3)]


def test_other_widths_than_32_bits_are_refused():
    with pytest.raises(NotImplementedError, match="32-bit"):
        jax.random.bits(jax.random.key(0, impl=COUNTER_HASH), (2,), "uint16")


def test_no_two_keys_of_seeds_steps_sites_and_rows_agree():
    def derive(key, data):
        return jax.vmap(lambda k: jax.vmap(lambda d: jax.random.fold_in(k, d))(data))(key).ravel()

    seeds = jnp.arange(4, dtype=jnp.uint32)
    steps = jnp.arange(64, dtype=jnp.int32)
    keys = jax.vmap(lambda s: jax.vmap(lambda t: dropout_key(s, t))(steps))(seeds).ravel()
    for counters in (16, 32):  # sites of a model, then rows of a batch
        keys = derive(keys, jnp.arange(counters))
    words = np.asarray(jax.random.key_data(keys)).astype(np.uint64)
    assert len(words) == 4 * 64 * 16 * 32
    assert len(np.unique(words[:, 0] << np.uint64(32) | words[:, 1])) == len(words)
    for word in words.T:  # each alone looks random: as many repetitions as chance gives
        repeated = len(word) - len(np.unique(word))
        assert abs(repeated - len(word) ** 2 / 2**33) < 5


def test_hash_of_a_row_knows_nothing_of_the_other_rows():
    bits = hash_bits(ROW_KEYS, (8, 8))
    chex.assert_shape(bits, (64, 8, 8))
    assert bits.dtype == jnp.uint32
    np.testing.assert_array_equal(hash_bits(ROW_KEYS[5:6], (8, 8))[0], bits[5])
    # The counter is the position in the flat row: no two elements share one.
    np.testing.assert_array_equal(hash_bits(ROW_KEYS, (64,)), bits.reshape(64, 64))
    assert len(np.unique(hash_bits(ROW_KEYS[:1], (2**16,)))) == 2**16


def test_hash_bits_are_fair_coins():
    bits = np.asarray(hash_bits(ROW_KEYS, (2**12,)))  # 2**18 values
    ones = np.array([(bits >> i & 1).sum() for i in range(32)])
    expected = bits.size / 2
    statistic = ((ones - expected) ** 2 / (expected / 2)).sum()  # both sides of each coin
    assert is_plausible(scipy.stats.chi2.sf(statistic, 32))


@pytest.mark.parametrize("rows", [16, 1], ids=["many_keys", "one_key"])
def test_hash_words_of_consecutive_counters_are_uniform(rows):
    bits = np.asarray(hash_bits(ROW_KEYS[:rows], (2**20 // rows,))).ravel()
    top_byte = bits >> 24
    words = {
        "low half": bits & 0xFFFF,
        "high half": bits >> 16,
        "top bytes of neighbours": top_byte[:-1] << 8 | top_byte[1:],
        "top bytes sixteen apart": top_byte[:-16] << 8 | top_byte[16:],
    }
    for name, word in words.items():
        p_value = scipy.stats.chisquare(np.bincount(word, minlength=2**16)).pvalue
        assert is_plausible(p_value), name


def test_hash_flips_every_bit_with_probability_half_when_a_key_bit_flips():
    flips = np.concatenate(
        [[(1 << i, 0) for i in range(32)], [(0, 1 << i) for i in range(32)]]
    ).astype(np.uint32)  # [key bit, word]
    flipped_keys = (ROW_KEYS[None] ^ flips[:, None]).reshape(-1, 2)
    flipped = np.asarray(hash_bits(flipped_keys, (256,))).reshape(64, -1)
    changed = flipped ^ np.asarray(hash_bits(ROW_KEYS, (256,))).reshape(1, -1)
    samples = changed.shape[1]
    rate = np.stack([(changed >> i & 1).mean(1) for i in range(32)])  # [output bit, key bit]
    z = (rate - 0.5) * 2 * np.sqrt(samples)
    assert np.abs(z).max() < 5.5  # of 2048 normal deviates
    assert is_plausible(scipy.stats.chi2.sf(np.square(z).sum(), z.size))
