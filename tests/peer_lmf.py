"""Gives LMF a reference's parameters."""

from check_peers import File
from peer_tfn import rebuild_with

from msajax.models.peers.settings import LmfSettings


def rebuild(file: File) -> tuple[int, dict]:
    """Computes the outputs of a file of LMF."""
    c = file.config
    head = {f"{m}_factor": file.param[f"{m}_factor"] for m in ("text", "audio", "video")}
    head |= {name: file.param[name] for name in ("fusion_weights", "fusion_bias")}
    own = LmfSettings(
        rank=c["rank"], text_hidden=c["text_hidden"], audio_hidden=c["audio_hidden"],
        video_hidden=c["video_hidden"], text_dropout=0.0, audio_dropout=0.0, video_dropout=0.0,
    )  # fmt: skip
    return rebuild_with(file, head, name="lmf", own=own)
