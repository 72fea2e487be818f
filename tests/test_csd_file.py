"""One `.csd` file: its rows come back in time order; what is damaged or leads astray is refused."""

import os
import pathlib
import re
import tracemalloc

import h5py
import numpy as np
import pytest
import refusals
from csd_files import Videos, write_csd

from msajax.corpus.formats import csd_file
from msajax.corpus.formats.csd_file import read_csd
from msajax.errors import UserError


def good_videos() -> Videos:
    rng = np.random.default_rng(0)
    return {
        video: (
            rng.normal(size=(rows, 3)).astype(np.float32),
            np.arange(rows)[:, None] / 10 + np.array([[0.0, 0.1]]),
        )
        for video, rows in (("b", 5), ("a", 40), ("C", 1))
    }


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "features.csd"


def read_all(path) -> None:
    sequence = read_csd(path)
    list(sequence.rows(sequence.videos))


def refusal(path) -> str:
    """The sentence with which a file is refused when it is opened, or at the latest when read."""
    return refusals.refusal(read_all, path)


# --- what is read ---


@pytest.mark.parametrize(
    "options",
    [{}, {"compression": "gzip", "shuffle": True}, {"compression": "lzf"}, {"chunks": (1, 1)}],
)
def test_a_file_survives_being_written_and_read(path, options):
    videos = good_videos()
    sequence = read_csd(write_csd(path, videos, **options))
    assert (sequence.path, sequence.name) == (str(path), "some root")
    assert sequence.videos == ("C", "a", "b")
    assert (sequence.size, sequence.width, sequence.is_bytes) == (46, 3, False)
    assert sequence.duration == pytest.approx(0.1, rel=1e-12)
    found = list(sequence.rows(["b", "unknown", "C"]))
    assert [rows.video for rows in found] == ["b", "C"]
    for rows in found:
        np.testing.assert_array_equal(rows.features, videos[rows.video][0], strict=True)
        np.testing.assert_array_equal(rows.intervals, videos[rows.video][1], strict=True)


def test_rows_come_in_the_order_of_their_starts_and_ties_in_that_of_the_file(path):
    intervals = np.array([[3, 4], [1, 5], [2, 2], [1, 1], [1, 9.0]])
    features = np.arange(5)[:, None]
    rows = next(read_csd(write_csd(path, {"v": (features, intervals)})).rows(["v"]))
    assert rows.features[:, 0].tolist() == [1, 3, 4, 2, 0]
    assert rows.intervals.tolist() == [[1, 5], [1, 1], [1, 9], [2, 2], [3, 4]]
    many = np.repeat(np.random.default_rng(0).integers(0, 3, (500, 1)), 2, axis=1)
    rows = next(read_csd(write_csd(path, {"v": (np.arange(500)[:, None], many)})).rows(["v"]))
    assert rows.features[:, 0].tolist() == sorted(range(500), key=many[:, 0].tolist().__getitem__)
    with h5py.File(path, "w") as file:  # videos are sorted, whatever their order in the file
        data = file.create_group("root/data", track_order=True)
        for video in ("c", "a", "b"):
            data[f"{video}/features"], data[f"{video}/intervals"] = np.ones((1, 1)), [[0, 1]]
        assert list(data) == ["c", "a", "b"]
    assert read_csd(path).videos == ("a", "b", "c")


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4", np.int16])
def test_intervals_of_any_type_become_float64_and_features_stay_as_stored(path, dtype):
    intervals, features = np.array([[-2, 1], [3, 9]]), np.arange(6).reshape(2, 3)
    write_csd(path, {"v": (features.astype(dtype), intervals.astype(dtype))})
    rows = next(read_csd(path).rows(["v"]))
    np.testing.assert_array_equal(rows.intervals, intervals.astype(np.float64), strict=True)
    np.testing.assert_array_equal(rows.features, features)
    assert rows.features.dtype == np.dtype(dtype)


def test_words_may_be_of_another_width_in_every_video(path):
    videos = {
        "a": (np.array([[b"sp"], [b"hi"]]), np.array([[0, 1], [1, 2.0]])),
        "b": (np.array([["größer".encode()]]), np.array([[0, 1.0]])),
    }
    sequence = read_csd(write_csd(path, videos))
    assert (sequence.is_bytes, sequence.width, sequence.size) == (True, 1, 3)
    assert [rows.features.tolist() for rows in sequence.rows("ab")] == [
        [[b"sp"], [b"hi"]],
        [["größer".encode()]],
    ]


def test_the_duration_is_a_median_of_medians(path):
    def video(*lengths):
        return np.zeros((len(lengths), 1)), np.array([[5, 5 + length] for length in lengths])

    videos = {
        "a": video(1, 2, 90.0),
        "b": video(4.0),
        "c": video(7, 9, 8.0),
        "none": (np.zeros((0, 1)), np.zeros((0, 2))),
    }
    assert read_csd(write_csd(path, videos)).duration == 4.0
    assert read_csd(write_csd(path, {"none": videos["none"]})).duration == 0.0


def test_metadata_is_neither_needed_nor_read(path):
    write_csd(path, good_videos())
    with h5py.File(path, "a") as file:
        del file["some root/metadata"]
        file["some root/metadata"] = h5py.ExternalLink("gone.h5", "/nowhere")
        file["some root"].attrs["junk"] = "x" * 1000
    assert read_csd(path).size == 46


# --- files that are damaged ---


def test_what_is_no_file_of_this_kind_is_refused(tmp_path, path):
    os.mkfifo(tmp_path / "pipe.csd")  # is not waited for
    for place in (tmp_path / "gone.csd", tmp_path, tmp_path / "pipe.csd"):
        assert re.search(f"There is no file at {place}", refusal(place))
    for content in (b"", b"id,label\n", b"PK\3\4", b"\x89HDF\r\n\x1a\n"):
        path.write_bytes(content)
        assert re.search(r"features\.csd is damaged or not an HDF5 file: ", refusal(path))
    for options in ({}, {"compression": "gzip"}):
        content = write_csd(path, good_videos(), **options).read_bytes()
        for kept in (0.01, 0.6, 0.999):
            path.write_bytes(content[: int(kept * len(content))])
            assert re.search("is damaged or not an HDF5 file: .*truncated", refusal(path))


def test_a_damaged_chunk_is_found_when_the_file_is_opened(path):
    write_csd(path, good_videos(), compression="gzip", fletcher32=True)
    with h5py.File(path) as file:
        chunk = file["some root/data/a/features"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset + chunk.size // 2] ^= 1
    path.write_bytes(content)
    found = refusals.refusal(read_csd, path)
    assert re.search("/some root/data/a/features is damaged: ", found)


def test_a_file_that_goes_bad_after_it_was_opened_is_one_sentence(path):
    sequence = read_csd(write_csd(path, good_videos()))
    write_csd(path, {v: (x[:, :2], t) for v, (x, t) in good_videos().items()})
    with pytest.raises(UserError, match=r"features\.csd changed while in use\.$"):
        next(sequence.rows(["a"]))
    path.unlink()
    with pytest.raises(UserError, match="There is no file at"):
        next(sequence.rows(["a"]))


# --- files that do not fit the format ---


SPAN = np.array([(0.0, 1.0), (1.0, 2.0)])
BAD_VIDEOS = (
    ((np.zeros(2), SPAN), r"features is float64 of shape \(2,\); expected numbers or"),
    ((np.zeros((2, 1, 1)), SPAN), r"is float64 of shape \(2, 1, 1\); expected numbers"),
    ((np.float32(1), SPAN), r"features is float32 of shape \(\)"),
    ((h5py.Empty("f4"), SPAN), r"features is float32 of shape None"),
    ((np.zeros((2, 0)), SPAN), r"of shape \(2, 0\); expected 1 to 65536 columns"),
    ((np.zeros((0, 65537)), np.zeros((0, 2))), r"expected 1 to 65536 columns"),
    ((np.array([[b"a", b"b"]] * 2), SPAN),
     r"features is bytes of shape \(2, 2\); expected one column"),
    ((np.zeros((2, 1), complex), SPAN), r"features is complex128 of shape"),
    ((np.zeros((2, 1), bool), SPAN), r"features is bool of shape"),
    ((np.zeros((2, 1), "f4,i4"), SPAN), r"expected numbers or bytes"),
    ((np.array([["a"], ["b"]], h5py.string_dtype()), SPAN),
     r"features is object of shape \(2, 1\); expected an array of numbers"),
    ((np.zeros((2, 1)), np.zeros(2)), r"intervals is float64 of shape \(2,\)"),
    ((np.zeros((2, 1)), np.zeros((2, 3))),
     r"intervals is float64 of shape \(2, 3\); expected 2 rows of start and end"),
    ((np.zeros((2, 1)), SPAN[:1]),
     r"intervals is float64 of shape \(1, 2\); expected 2 rows of start and end"),
    ((np.zeros((2, 1)), np.full((2, 2), b"1")), r"intervals is bytes of shape"),
    ((np.zeros((2, 1)), [(0, 1), (np.nan, 2)]), r"row 1 of .*intervals is \[nan, 2\.0"),
    ((np.zeros((2, 1)), [(0, np.inf), (1, 2)]), r"row 0 of .* finite seconds"),
    ((np.zeros((2, 1)), [(0, 1), (2, 1.5)]), r"row 1 .*\[2\.0, 1\.5\]; expected"),
)


@pytest.mark.parametrize(("video", "message"), BAD_VIDEOS, ids=[b[1][:40] for b in BAD_VIDEOS])
def test_a_video_that_does_not_fit_is_refused_by_name(path, video, message):
    found = refusal(write_csd(path, {"bad": video}))
    assert re.search(message, found), found
    assert str(path) in found and "/some root/data/bad/" in found


def test_videos_that_differ_are_refused_by_name(path):
    numbers = np.zeros((2, 3))
    for other, said in (
        (np.zeros((2, 4)),
         "float64 of shape (2, 4), but those of 'a' are float64 of shape (2, 3)."),
        (np.array([[b"a"]] * 2), "bytes of shape (2, 1), but"),
    ):
        found = refusal(write_csd(path, {"a": (numbers, SPAN), "b": (other, SPAN)}))
        assert f"the features of 'b' are {said}" in found


def remake(path: pathlib.Path, change) -> str:
    """Changes a good file, and returns the sentence with which it is refused then."""
    write_csd(path, good_videos())
    with h5py.File(path, "a") as file:
        change(file)
    return refusal(path)


BAD_TREES = (
    (lambda f: f.pop("some root"), r"0 objects at the top"),
    (lambda f: f.create_group("other"), r"2 objects at the top; .* one root group"),
    (lambda f: (f.pop("some root"), f.create_dataset("x", data=[1])), r"/x is no group"),
    (lambda f: f.pop("some root/data"), r"/some root/data is missing"),
    (lambda f: (f.pop("some root/data"), f.create_dataset("some root/data", data=[1])),
     r"/some root/data is no group"),
    (lambda f: [f.pop(f"some root/data/{v}") for v in "abC"], r"/some root/data holds no video"),
    (lambda f: f.create_dataset("some root/data/x", data=[1]), r"/data/x is no group"),
    (lambda f: f.pop("some root/data/a/intervals"), r"/a/intervals is missing"),
    (lambda f: (f.pop("some root/data/a"), f.__setitem__("some root/data/a", f["some root/data"])),
     r"/data/a/features is missing"),  # a group that holds itself
    (lambda f: f.pop("some root/data/a/features"), r"/a/features is missing"),
    (lambda f: (f.pop("some root/data/a/features"), f.create_group("some root/data/a/features")),
     r"/a/features is no dataset"),
    (lambda f: f.create_group("some root/data/" + "x" * 300),
     r"the name 'x{200}' is not UTF-8 of at most 200 characters"),
    (lambda f: h5py.h5g.create(f["some root/data"].id, b"\xff\xfe"),
     r"the name b'\\xff\\xfe' is not UTF-8 of at most 200 characters"),
)


@pytest.mark.parametrize(("change", "message"), BAD_TREES, ids=[b[1][:40] for b in BAD_TREES])
def test_a_tree_that_is_no_computational_sequence_is_refused(path, change, message):
    found = remake(path, change)
    assert re.search(message, found), found


# --- files that lead astray ---


@pytest.mark.parametrize("place", ["", "/data", "/data/a", "/data/a/features"])
def test_links_are_refused_and_not_followed(tmp_path, path, place):
    place = f"some root{place}"
    other = write_csd(tmp_path / "other.csd", good_videos())
    for link in (
        h5py.ExternalLink(str(other), f"/{place}"),
        h5py.SoftLink("/some root/data/b/features"),
        h5py.SoftLink(f"/{place}"),  # a loop
        h5py.SoftLink("/nowhere"),
    ):
        found = remake(path, lambda f, link=link: (f.pop(place), f.__setitem__(place, link)))
        assert found.endswith(f"/{place} is a link, which is not followed.")


def with_features(shape, dtype="f4", **options):
    def change(file):
        del file["some root/data/a/features"]
        file.create_dataset("some root/data/a/features", shape, dtype, **options)

    return change


def test_a_dataset_whose_values_are_in_another_file_is_refused(tmp_path, path):
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["x"] = np.ones((40, 3))

    def virtual(file):
        layout = h5py.VirtualLayout((40, 3), np.float64)
        layout[:] = h5py.VirtualSource(str(secret), "x", (40, 3))
        del file["some root/data/a/features"]
        file.create_virtual_dataset("some root/data/a/features", layout)

    for change in (virtual, with_features((40, 3), external=[(str(secret), 0, 480)])):
        assert re.search("/a/features takes its values from other files", remake(path, change))


def test_a_size_that_is_not_stored_is_refused_without_allocating_it(path):
    tracemalloc.start()
    chunked = with_features((2**40, 3), chunks=(1000, 3), compression="gzip")
    assert re.search(r"declares 13194139533312 bytes, but only 0 are stored", remake(path, chunked))
    flat = with_features((2**36, 3))
    assert re.search(r"declares 824633720832 bytes, but only 0 are stored", remake(path, flat))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6


def test_a_compressed_bomb_is_refused_and_zeros_that_compress_well_are_none(path, monkeypatch):
    intervals = np.arange(20000)[:, None] + np.array([[0.0, 1.0]])
    write_csd(path, {"v": (np.zeros((20000, 35)), intervals)}, compression="gzip")
    with h5py.File(path) as file:
        features = file["some root/data/v/features"]
        assert features.nbytes / features.id.get_storage_size() > 400
    assert not next(read_csd(path).rows(["v"])).features.any()
    monkeypatch.setattr(csd_file, "LARGEST", 1 << 20)
    bomb = with_features((200000, 3), data=np.zeros((200000, 3), "f4"), compression="gzip")
    assert re.search(r"declares 2400000 bytes; at most 1048576 fit", remake(path, bomb))
    monkeypatch.setattr(csd_file, "LARGEST", 1000)  # a chunk larger than its dataset
    large = {"chunks": (200, 3), "maxshape": (None, 3), "compression": "gzip"}
    bomb = with_features((40, 3), data=np.zeros((40, 3), "f4"), **large)
    assert re.search(r"declares 2400 bytes; at most 1000 fit", remake(path, bomb))


def test_a_filter_that_needs_code_from_elsewhere_is_refused(path):
    def change(file):
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((40, 3))
        properties.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, ())  # Blosc, a plugin
        group = file["some root/data/a"].id
        del file["some root/data/a/features"]
        space = h5py.h5s.create_simple((40, 3))
        h5py.h5d.create(group, b"features", h5py.h5t.NATIVE_FLOAT, space, dcpl=properties)

    assert re.search("/a/features is compressed in another way than gzip", remake(path, change))
