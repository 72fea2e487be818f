"""Files of the CMU Multimodal SDK for tests."""

import pathlib

import h5py
import numpy as np

Videos = dict[str, tuple[np.ndarray, np.ndarray]]


def write_csd(
    path: pathlib.Path, videos: Videos, root: str = "some root", **options
) -> pathlib.Path:
    """A file as the SDK writes it: features and intervals by video; options are h5py's."""
    with h5py.File(path, "w") as file:
        for video, (features, intervals) in videos.items():
            group = file.create_group(f"{root}/data/{video}")
            group.create_dataset("features", data=features, **options)
            group.create_dataset("intervals", data=intervals, **options)
        metadata = file.create_group(f"{root}/metadata")
        metadata.create_dataset("md5", data=["asdf"], dtype=h5py.string_dtype())
    return path
