"""Holds the program that every export brings along, as an example of how to call it."""

EXAMPLE = '''\
"""Scores samples with jax, numpy and flatbuffers: python example.py [INPUTS.npz [SCORES.npz]]"""
import json, pathlib, sys
import jax, jax.export
import numpy as np
here = pathlib.Path(__file__).resolve().parent
manifest = json.loads((here / "manifest.json").read_text(encoding="utf-8"))
program = jax.export.deserialize(bytearray((here / manifest["program"]).read_bytes()))
parameters = jax.device_put(dict(np.load(here / manifest["parameters"])))
longest = manifest["longest"]
# Without a file: two samples of zeros, of which every step is there.
inputs = dict(np.load(sys.argv[1])) if sys.argv[1:] else {x["name"]: np.full(
    [n if isinstance(n, int) else longest.get(n, 2) for n in x["shape"]],
    x["name"].startswith("masks/")) for x in manifest["inputs"]}
inputs = {x["name"]: inputs[x["name"]].astype(x["dtype"]) for x in manifest["inputs"]}
sizes = {s: n for x in manifest["inputs"] for s, n in zip(x["shape"], inputs[x["name"]].shape)}
if any(sizes[name] > most for name, most in longest.items()):
    sys.exit(f"These samples are {sizes} long, at most {longest} is read: cut them.")
scores = jax.device_get(jax.jit(program.call)(parameters, inputs))
print({name: x.shape for name, x in scores.items()}, scores["score"].tolist()[:3])
np.savez(sys.argv[2], **scores) if sys.argv[2:] else None
'''
