"""`Bundle.predict`: samples in memory get the scores of a file, in any batch and of any length."""

import dataclasses

import jax
import numpy as np
import pandas
import pytest
from tiny import tiny_config

import msajax
from msajax.config import MeshConfig
from msajax.corpus.corpus import Split
from msajax.corpus.in_memory import corpus_of
from msajax.inference.bundle import Bundle, load_bundle, save_bundle
from msajax.inference.predict import predict_corpus
from msajax.inference.scores import as_split
from msajax.inference.scoring import Scorer, make_predict, predict_program
from msajax.models.build import build_model
from msajax.models.contract import blank_sample
from msajax.preparation.fit import fit
from msajax.runtime.devices import make_layout
from msajax.tasks import TASKS

N, T = 21, {"text": 5, "audio": 3}
WIDTHS = {"text": 6, "audio": 4}


def samples(n: int, seed: int = 1) -> Split:
    """Features far from standardised, padded behind and in front; some audio is missing."""
    rng = np.random.default_rng(seed)
    features = {m: rng.normal(7, 3, (n, T[m], d)) for m, d in WIDTHS.items()}
    features["text"][::2, 3:] = 0
    features["text"][1::3, :1] = 0
    features["audio"][::4] = 0
    ids = np.array([f"s{i}" for i in range(n)])
    return Split(ids, features, {}, rng.uniform(-3, 3, (n, 1)))


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """Three untrained seeds, with what was fitted on 40 samples."""
    config = tiny_config(model__modalities=("text", "audio"), data__path="memory")
    preparation = fit(corpus_of({"train": samples(40, 0)}), config.data, config.model)
    model = build_model(config.model, preparation.spec)
    keys = jax.random.split(jax.random.key(0), 3)
    sample = blank_sample(preparation.spec)
    params = jax.jit(jax.vmap(lambda key: model.init(key, *sample)["params"]))(keys)
    return Bundle(config, preparation, [0, 1, 2], [1, 1, 1], jax.device_get(params), "digest")


@pytest.fixture(scope="module")
def all_at_once(bundle) -> msajax.Scores:
    return bundle.predict(samples(N).features)


def test_scores_are_those_of_the_file_and_their_means_and_deviations(
    bundle, all_at_once, tmp_path
):
    output = tmp_path / "scores.csv"
    assert predict_corpus(bundle, corpus_of({"test": samples(N)}), "all", str(output)) == N
    rows = np.genfromtxt(output, delimiter=",", names=True, dtype=None, encoding="utf-8")
    prepared = bundle.prepare_split(samples(N), "")
    scores = msajax.Scores.of_seeds(*bundle.scorer.score(prepared, ""), bundle.calibration)
    np.testing.assert_allclose(all_at_once.seeds, scores.seeds, atol=2e-6)  # longer batches
    arrays = [x.shape for x in dataclasses.astuple(scores) if x is not None]
    assert arrays == [(N, 1), (N, 1), (3, N, 1), (N, 2)]
    columns = {"score": scores.score, "score_sd": scores.score_sd}
    columns |= {f"score_seed{k}": scores.seeds[k] for k in range(3)}
    columns |= {f"weight_{m}": scores.weights[:, [i]] for i, m in enumerate(T)}
    for name, values in columns.items():
        np.testing.assert_allclose(values[:, 0], rows[name], rtol=1e-8, err_msg=name)
    np.testing.assert_array_equal(scores.score, scores.seeds.mean(axis=0))
    np.testing.assert_array_equal(scores.score_sd, scores.seeds.std(axis=0, ddof=1))
    assert len(np.unique(scores.score)) > N / 2  # they do depend on the sample


def test_a_call_of_the_module_with_prepared_input_gives_the_same(bundle, all_at_once):
    features, masks = bundle.prepare(samples(N).features)
    apply = jax.jit(msajax.build_model(bundle.config.model, bundle.preparation.spec).apply)
    for k in range(3):
        params = jax.tree.map(lambda x, k=k: x[k], bundle.params)
        found = apply({"params": params}, features, masks)
        np.testing.assert_allclose(found.score, all_at_once.seeds[k], atol=2e-6)
    raw = {m: x.astype(np.float32) for m, x in samples(N).features.items()}
    unprepared = apply({"params": params}, raw, masks)
    assert np.abs(unprepared.score - all_at_once.seeds[2]).max() > 0.01


def test_neither_batch_nor_length_nor_the_form_of_a_sample_matters(bundle, all_at_once):
    x = samples(N).features
    for rows in ([20], [4, 3, 2, 1], list(range(10, N))):
        found = bundle.predict({m: v[rows] for m, v in x.items()})
        np.testing.assert_allclose(found.seeds, all_at_once.seeds[:, rows], atol=2e-6)
    longer = {m: np.pad(v, [(0, 0), (2, 9), (0, 0)]) for m, v in x.items()}
    np.testing.assert_allclose(bundle.predict(longer).score, all_at_once.score, atol=2e-6)
    # Lists of different lengths, some beginning with zeros: as the padded array, and as alone.
    ragged = {"text": [x["text"][i, : 5 - i % 3].tolist() for i in range(N)], "audio": x["audio"]}
    padded = {m: v.copy() for m, v in x.items()}
    for i in range(N):
        padded["text"][i, 5 - i % 3 :] = 0
    found, expected = bundle.predict(ragged), bundle.predict(padded)
    np.testing.assert_allclose(found.score, expected.score, atol=2e-6)
    for i in range(4):
        alone = bundle.predict({"text": ragged["text"][i : i + 1], "audio": x["audio"][[i]]})
        np.testing.assert_allclose(alone.score, found.score[[i]], atol=2e-6)
    masks = {"text": [np.arange(5 - i % 3) > 1 for i in range(N)]}
    step = np.arange(5)
    as_array = {"text": np.array([(step > 1) & (step < 5 - i % 3) for i in range(N)])}
    hidden, expected = bundle.predict(ragged, masks), bundle.predict(padded, as_array)
    np.testing.assert_allclose(hidden.score, expected.score, atol=2e-6)


def test_a_sample_without_a_step_of_a_modality_lacks_it_alone_too(bundle):
    x = samples(2).features
    together = bundle.predict({"text": [x["text"][0], x["text"][1][:0]], "audio": x["audio"]})
    lacking = bundle.predict({"audio": x["audio"][1:]})
    for none in ([x["text"][1][:0]], [[]], np.zeros((1, 0, 6))):
        alone = bundle.predict({"text": none, "audio": x["audio"][1:]})
        np.testing.assert_array_equal(alone.score, lacking.score)
        np.testing.assert_allclose(alone.score, together.score[1:], atol=2e-6)


def test_each_program_is_compiled_once_and_a_guard_of_transfers_does_not_hinder(bundle):
    predict_program.cache_clear()
    again = dataclasses.replace(bundle)  # nothing is compiled for it yet
    x, compiled, events = samples(N).features, [], []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.append(name))
    for sizes in ((1, 5, N), (N, 1, 5, 5)):
        events.clear()
        for n in sizes:
            for steps in (5, 3):
                with jax.transfer_guard("disallow"):  # of the caller: samples are moved as asked
                    again.predict({m: v[:n, :steps] for m, v in x.items()})
        compiled.append(sum("compile" in name for name in events))
    assert compiled[0] > 0 and compiled[1] == 0
    assert again.scorer.predict.program._cache_size() <= 12


def test_a_new_number_of_samples_compiles_once_for_its_size_class_whatever_their_lengths(bundle):
    predict_program.cache_clear()
    again, rng = dataclasses.replace(bundle), np.random.default_rng(0)
    programs = []
    for n in (2, 16, 5, 9, 17, 128, 40, 129, 300):
        again.predict({"text": [rng.normal(size=(t, 6)) for t in rng.integers(1, 6, n)]})
        programs.append(again.scorer.predict.program._cache_size())
    assert programs == [1] * 5 + [2] * 4


def test_scores_are_the_bits_of_the_program_whose_input_lies_on_the_devices(bundle):
    spec, x = bundle.preparation.spec, samples(3).features
    layout = make_layout(MeshConfig(), "auto", 3)
    predict = make_predict(build_model(bundle.config.model, spec), TASKS["regression"], layout)
    direct = Scorer(predict, layout.put_state(bundle.variables), spec, layout.put_rows)
    cut = bundle.with_data(truncate="uniform")
    long = {m: np.concatenate([v, v[::-1]], axis=1) for m, v in x.items()}
    masks = {"text": np.ones((3, 5), bool), "audio": np.arange(9).reshape(3, 3) % 2 > 0}
    masks["text"][:, 1] = False
    lists = {m: [v[0].tolist(), v[1, :1], v[2, :2]] for m, v in x.items()}
    odd = [(cut, long), (bundle, x, masks), (bundle, lists), (bundle, {"text": x["text"]})]
    for scoring, *given in odd:
        given = [*given, *[None] * (3 - len(given))]
        split = as_split(*given, scoring.preparation)
        split = scoring.prepare_split(split, "the samples", refuse=False)
        scores, weights = direct.score(split, "the samples", one_program=True)
        found = scoring.predict(*given)
        np.testing.assert_array_equal(found.seeds, scores)
        np.testing.assert_array_equal(found.weights, weights.mean(axis=0))
        for i in range(3):  # what is read of a sample depends on no other
            features, valid = scoring.prepare(*[_row(part, i) for part in given])
            for m in spec.modalities:
                np.testing.assert_array_equal(features[m][0], split.features[m][i])
                np.testing.assert_array_equal(valid[m][0], split.masks[m][i])


def _row(given, i: int):
    """One sample of features or masks."""
    return given and {m: x[i : i + 1] for m, x in given.items()}


def test_masks_a_single_step_an_absent_modality_and_no_sample(bundle):
    x = samples(N).features
    alone = bundle.predict({"text": x["text"]})
    np.testing.assert_allclose(alone.weights, np.tile([1.0, 0.0], (N, 1)), atol=1e-6)
    hidden = bundle.predict(x, {"audio": np.zeros((N, 3), bool)})
    np.testing.assert_allclose(hidden.score, alone.score, atol=2e-6)
    one_step = {m: v[:, 2:3] for m, v in x.items()}
    flat = bundle.predict(one_step, {"audio": np.zeros(N, bool)})
    np.testing.assert_allclose(flat.weights[:, 1], 0)
    for nothing in (np.zeros((0, 5, 6)), []):
        none = bundle.predict({"text": nothing})
        shapes = [v.shape for v in dataclasses.astuple(none) if v is not None]
        assert shapes == [(0, 1), (0, 1), (3, 0, 1), (0, 2)]
    for none in ([], None):
        some = bundle.predict({"text": [x["text"][1], none]})
        np.testing.assert_allclose(some.weights, [[1, 0], [0, 0]], atol=1e-6)
    column = np.empty(2, object)  # as a data frame has it
    column[:] = [x["text"][1], x["text"][2, :2]]
    listed = bundle.predict({"text": list(column)})
    steps = as_split({"text": x["text"][:, 2:3]}, None, None, bundle.preparation)
    for vectors in (list(x["text"][:, 2]), pandas.Series(list(x["text"][:, 2]))):
        found = as_split({"text": vectors}, None, None, bundle.preparation)
        np.testing.assert_array_equal(found.features["text"], steps.features["text"])
    np.testing.assert_array_equal(bundle.predict({"text": column}).score, listed.score)

    class Column(list):  # as polars has it: an array of arrays of arrays of objects
        to_list = list.copy

        def __array__(self, *_):
            return np.fromiter((np.fromiter(row, object, len(row)) for row in self), object, 2)

    column = Column(row.tolist() for row in column)
    np.testing.assert_array_equal(bundle.predict({"text": column}).score, listed.score)


def test_what_is_longer_than_the_model_is_cut_only_if_that_is_asked_for(bundle):
    x = np.random.default_rng(3).normal(size=(2, 8, 6))
    with pytest.raises(msajax.UserError, match="longer than the model's 5 .*data.truncate=first"):
        bundle.predict({"text": x})
    for rule, part in (("first", x[:, :5]), ("last", x[:, 3:])):
        cut = bundle.with_data(truncate=rule).predict({"text": x})
        np.testing.assert_array_equal(cut.score, bundle.predict({"text": part}).score)
    with pytest.raises(msajax.UserError, match="data.truncate = 'middle': must be one of"):
        bundle.with_data(truncate="middle")


X = np.ones((2, 3, 6))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (({"vidoe": X},), "features names 'vidoe': expected some of text, audio."),
        (({"audoi": X},),
         "features names 'audoi': expected some of text, audio. Did you mean 'audio'?"),
        (({"text": X}, {"audio": X[..., 0]}), "masks names 'audio': expected some of text."),
        (({},), "Nothing is given to predict: expected features, raw_text or words."),
        (({"text": X, "audio": np.ones((3, 2, 4))},),
         "The number of samples must be the same in all that is given: 2 in features['text'], "
         "3 in features['audio']."),
        (({"text": X}, None, ["one"]),
         "The number of samples must be the same in all that is given: 2 in features['text'], "
         "1 in raw_text."),
        (({"text": X}, None, ["one", "two"]), "features names 'text', and transcripts are given"),
        (({"text": X[0, 0]},), "features['text'] is float64 (6,): expected numbers (N, T, d)."),
        (({"text": X[0].tolist()},),
         "features['text'] is float64 (3, 6): expected (N, T, d). One sample of 3 steps is"),
        (({"text": X}, None, "two"), "raw_text is of type str: expected a list with an entry for "),
        (({"text": X}, None, [1, 2]), "raw_text must be a list of transcripts, one for each "),
        (({"audio": np.ones((7, 4))},),
         "features['audio'] is float64 (7, 4): expected (N, T, d). One sample of 7 steps is "
         "x[None], (1, 7, 4); 7 samples of one step each are x[:, None], (7, 1, 4)."),
        (({"text": X}, {"text": np.ones((2, 4))}),
         "masks['text'] is float64 (2, 4): expected bool (2, 3)."),
        (({"text": np.array([["a", "b"]])},),
         "features['text'] is <U1 (1, 2): expected numbers (N, T, d)."),
        (({"text": X}, {"text": np.ones((3, 2))}),
         "masks['text'] is float64 (3, 2): expected bool (2, 3)."),
        (({"text": [X[0], X[0, :1]]}, {"text": [[1], [1, 1, 1]]}),
         "masks['text'] is int64 (2, 3): expected bool (2, 3), each as long as its sample."),
        (({"text": [X[0], X[0, :1]]}, {"text": [[1, 1, 1], [1, 1, 1]]}),
         "masks['text'] is int64 (2, 3): expected bool (2, 3), each as long as its sample."),
        (([X],), "features is a list: expected {modality: array}, of text, audio."),
        (({"text": X}, [X]), "masks is a list: expected {modality: array}, of text, audio."),
        (({"text": X}, None, 5), "raw_text is of type int: expected a list"),
        (({"text": [X[0], X[0, :, :4]]},),
         "features['text'] is no array, and no list of arrays: sample 1 has steps of (4,), but "
         "sample 0 of (6,)."),
        (({"text": 5},), "features['text'] is no array, and no list of arrays: 'int' object"),
        (({"text": X[..., :5]},),
         "Modality 'text' is 5 wide here, but the model was trained on 6 features."),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_predict_mistake_is_one_sentence(bundle, arguments, sentence):
    with pytest.raises(msajax.UserError) as caught:
        bundle.predict(*arguments)
    assert str(caught.value).startswith(sentence)


def test_a_bundle_on_disk_gives_the_same_bits(bundle, all_at_once, tmp_path):
    save_bundle(str(tmp_path / "bundle"), bundle)
    loaded = load_bundle(tmp_path / "bundle")
    np.testing.assert_array_equal(loaded.predict(samples(N).features).seeds, all_at_once.seeds)


def test_reprs_are_short(bundle, all_at_once):
    assert repr(bundle) == (
        "Bundle(sequence_level of text (6 wide, 5 steps), audio (4 wide, 3 steps); "
        f"{bundle.parameters:,} parameters, 3 seed(s))"
    )
    shown = "text [21, 5, 6], audio [21, 3, 4], labels [21, 1]"
    assert repr(samples(N)) == f"Split(21 samples: {shown})"
    assert repr(corpus_of({"train": samples(N)})) == (
        "Corpus('memory', splits in memory: 21 train; text (6), audio (4))"
    )
    assert repr(bundle.preparation).endswith("audio (4 wide, 3 steps); standardised: audio)")
    shown = msajax.Config(data=msajax.DataConfig(path="c.npz"))
    assert repr(shown) == "Config(data=DataConfig(path='c.npz'))"
    assert repr(all_at_once).startswith("Scores(21 sample(s), 3 seed(s), score=[[")
    assert len(repr(all_at_once)) < 120


def test_what_goes_by_other_indices_is_not_paired(bundle):
    rows = [X[0], X[1]]
    shuffled = pandas.Series(rows).iloc[::-1]
    given = {"text": pandas.Series(rows), "audio": shuffled}
    with pytest.raises(msajax.UserError, match=r"features\[.audio.\] and features\[.text.\] have"):
        bundle.predict(given)
