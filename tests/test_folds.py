"""Folds: every video in one split, as the file says, as CMU-MOSI has it, or by a seed."""

import collections
import json
import logging
import pathlib

import pytest
import refusals

from msajax.config import DataConfig
from msajax.corpus.folds import choose_folds, deal_videos, mosi_folds
from msajax.errors import UserError

SEGMENTS = {f"v{k}": k + 1 for k in range(10)}


@pytest.fixture
def folds_file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "folds.json"


def choose(folds_file: pathlib.Path, content, segments=SEGMENTS):
    folds_file.write_text(content if isinstance(content, str) else json.dumps(content))
    return choose_folds("corpus", segments, str(folds_file), DataConfig())


def refusal(folds_file: pathlib.Path, content) -> str:
    message = refusals.refusal(choose, folds_file, content)
    assert str(folds_file) in message
    return message


def mosi_like() -> dict[str, int]:
    """93 videos with as many segments in each standard fold as CMU-MOSI, in another order."""
    counts = [24] * 51 + [1284 - 24 * 51] + [22] * 9 + [229 - 22 * 9] + [22] * 30 + [686 - 22 * 30]
    names = sorted(f"{c}{k}" for c in "-_09AZaz" for k in range(12))[:93]
    return dict(sorted(zip(names, counts, strict=True), key=lambda item: item[0][::-1]))


def test_a_file_names_the_folds(folds_file):
    for valid in ("valid", "dev", "val"):
        content = {"test": ["v9", "v3"], valid: ["v1"], "train": ["v2", "v0", "v2"]}
        folds = {"test": ["v3", "v9"], "valid": ["v1"], "train": ["v0", "v2"]}
        assert choose(folds_file, content) == folds
    segments = mosi_like()  # it goes before the standard folds
    assert choose(folds_file, {"test": list(segments)}, segments) == {"test": sorted(segments)}


def test_what_the_file_and_the_corpus_do_not_share_is_left_out_and_counted(folds_file, caplog):
    content = {"train": ["v0", "v1", "gone"], "test": ["v2", "v3", "v4", "v5"]}
    assert choose(folds_file, content) == {"train": ["v0", "v1"], "test": ["v2", "v3", "v4", "v5"]}
    assert "4 video(s) of the corpus are in no fold and left out, with 34 segment" in caplog.text
    assert "1 video(s) of the folds are not in the corpus" in caplog.text


def test_a_file_that_cannot_be_used_is_refused(folds_file):
    empty = "no video of 'test' has a segment in corpus"
    for content, message in (
        *((bad, "is not JSON; expected") for bad in ("{'train': []}", "", '{"train": ["v1"')),
        ("[" * 100000, "is not JSON; expected"),
        *((bad, "is no object with a list for each split") for bad in (["v0", "v1"], "3", "null")),
        ({}, "names no split"),
        ({"train": ["v0"], "other": ["v1"]}, "'other' is no split"),
        ({"valid": ["v0"], "dev": ["v1"]}, "'dev' is there twice"),
        ('{"test": ["v0"], "test": ["v1"]}', "'test' is there twice"),
        *(({"train": bad}, "'train' is no list of video ids") for bad in ("v0", ["v0", 1])),
        ({"train": {"v0": 1}}, "'train' is no list of video ids"),
        ({"train": ["v0"], "test": ["v1", "v0"]}, "puts 'v0' into both train and test"),
        *(({"train": ["v0"], "test": bad}, empty) for bad in ([], ["v77"])),
    ):
        assert message in refusal(folds_file, content), content
    with pytest.raises(UserError, match=empty):
        choose(folds_file, {"train": ["a"], "test": ["b"]}, {"a": 1, "b": 0})
    folds_file.write_bytes(b'{"train": ["\xff"]}')
    for suffix, message in (("", "is not JSON"), ("x", r"be read: No such file or directory\.")):
        with pytest.raises(UserError, match=message):
            choose_folds("corpus", SEGMENTS, f"{folds_file}{suffix}", DataConfig())


def test_the_numbers_of_cmu_mosi_bring_its_standard_folds(caplog):
    segments = mosi_like()
    assert list(segments) != sorted(segments)
    folds = mosi_folds(segments)
    with caplog.at_level(logging.INFO):
        assert folds == choose_folds("corpus", segments, None, DataConfig(split_seed=3))
    assert "corpus: the standard folds of CMU-MOSI." in caplog.text
    assert [len(folds[name]) for name in ("train", "valid", "test")] == [52, 10, 31]
    assert folds["train"] + folds["valid"] + folds["test"] == sorted(segments)


def test_other_numbers_are_not_taken_for_cmu_mosi():
    segments = mosi_like()
    names = sorted(segments)
    first, last = names[0], names[92]
    moved = segments | {first: segments[first] - 1, last: segments[last] + 1}
    assert mosi_folds(moved) is None
    assert mosi_folds({name: segments[name] for name in names[1:]}) is None
    assert mosi_folds({}) is None


@pytest.mark.parametrize(
    "videos, sizes", [(3, (1, 1, 1)), (4, (2, 1, 1)), (10, (7, 1, 2)), (100, (70, 10, 20))]
)
def test_without_folds_videos_are_split_in_the_stated_shares(videos, sizes, caplog):
    segments = {f"v{k}": 1 for k in range(videos)}
    folds = choose_folds("corpus", segments, None, DataConfig())
    assert tuple(len(folds[name]) for name in ("train", "valid", "test")) == sizes
    assert all(fold == sorted(fold) for fold in folds.values())
    times = collections.Counter(video for fold in folds.values() for video in fold)
    assert times == dict.fromkeys(segments, 1)
    told = f"split at random with seed 0 into {sizes[0]} train, {sizes[1]} valid, {sizes[2]} test"
    assert told in caplog.text
    if videos == 100:  # the seed decides, and the order of videos does not
        assert choose_folds("c", dict(reversed(segments.items())), None, DataConfig()) == folds
        assert choose_folds("c", segments, None, DataConfig(split_seed=1)) != folds


def test_videos_without_segments_take_no_place():
    folds = choose_folds("corpus", {"a": 1, "b": 0, "c": 1, "d": 1}, None, DataConfig())
    assert sorted(video for fold in folds.values() for video in fold) == ["a", "c", "d"]
    with pytest.raises(UserError, match=r"segments of 2 video\(s\); at least 3 are needed"):
        choose_folds("corpus", {"a": 1, "b": 0, "c": 1}, None, DataConfig())


# --- cross-validation ---


@pytest.mark.parametrize("folds", [3, 4, 10])
def test_every_video_is_dealt_to_one_fold_and_folds_are_about_equal(folds):
    for seed in range(20):
        sizes = {f"v{k}": 1 + (k * 7 + seed) % 23 for k in range(10 + seed)}
        dealt = deal_videos(sizes, folds, seed)
        assert len(dealt) == folds and all(dealt)
        assert sorted(video for fold in dealt for video in fold) == sorted(sizes)
        totals = [sum(sizes[video] for video in fold) for fold in dealt]
        assert max(totals) - min(totals) <= max(sizes.values())
        assert dealt == deal_videos(dict(reversed(sizes.items())), folds, seed)
    assert len({str(deal_videos(SEGMENTS, folds, seed)) for seed in range(10)}) == 10
