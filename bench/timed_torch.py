"""Trains and scores with the PyTorch model of peer_torch.py: what train_step.py measures against.

On a GPU everything lies there, the optimiser is one fused kernel, and the clock stops only when the
device is done.
"""

import functools

import numpy as np
import peer_torch
import torch
from accelerator import COMPILED, EAGER, REPLAYED, WHOLE_GRAPH

from msajax.config import ModelConfig
from msajax.corpus.corpus import Split
from msajax.spec import CorpusSpec

# What multiplies float32 matrices, as `torch.set_float32_matmul_precision` names it.
PRECISIONS = {"float32": "highest", "tensorfloat32": "high", "bfloat16": "highest"}
BATCH = 32


class Torch:
    """Holds the model, its optimiser and the data on one device: a GPU if PyTorch sees one."""

    def __init__(
        self,
        config: ModelConfig,
        spec: CorpusSpec,
        split: Split,
        params,
        mode: str = EAGER,
        number: str = "float32",
    ):
        """Begins with the parameters of one random seed of msajax.

        Args:
            config: of the model; what of it says a type is not read.
            spec: of the split.
            split: what to train on and to score.
            params: of msajax.
            mode: one of `accelerator.PEERS`. The last two need a GPU: torch.compile with mode
                "reduce-overhead", which replays the forward and the backward pass as CUDA graphs,
                and a graph of a whole step, optimiser included.
            number: float32, tensorfloat32, or bfloat16, which is automatic mixed precision.
        """
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        on_gpu = self.device == "cuda"
        if not on_gpu and mode in (REPLAYED, WHOLE_GRAPH):
            raise SystemExit(f"{mode} needs a GPU that PyTorch can use")
        torch.set_float32_matmul_precision(PRECISIONS[number])
        torch.manual_seed(0)
        self.number, self.size = number, len(split)
        self.model = peer_torch.SequenceLevel(config, spec)
        peer_torch.load_flax(self.model, params)
        self.model.to(self.device)
        # A graph can hold a step of the optimiser only if its count of steps lies on the device.
        self.graphed = mode == WHOLE_GRAPH
        fast = {"fused": True, "capturable": self.graphed} if on_gpu else {}
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, weight_decay=0.0, **fast
        )
        self.features = {m: torch.tensor(x, device=self.device) for m, x in split.features.items()}
        self.masks = {m: torch.tensor(x, device=self.device) for m, x in split.masks.items()}
        self.labels = torch.tensor(split.labels, dtype=torch.float32, device=self.device)
        self.order = torch.randperm(self.size).to(self.device)
        self.replays = mode == REPLAYED
        self.forward = self.model
        if mode in (COMPILED, REPLAYED):
            self.forward = torch.compile(
                self.model, mode="reduce-overhead" if self.replays else "default"
            )

    @functools.cached_property
    def step(self):
        """Takes a step on rows of the split."""
        return self._as_graph() if self.graphed else self._take_step

    def train(self) -> int:
        """Takes the steps of one epoch; returns the samples that it trained on."""
        self.model.train()
        for rows in self.order[: self.size // BATCH * BATCH].split(BATCH):
            self.step(rows)
        self._wait()
        return self.size // BATCH * BATCH

    def infer(self) -> int:
        """Scores the whole split."""
        self.model.eval()
        with torch.inference_mode():
            for rows in torch.arange(self.size, device=self.device).split(128):
                self._scores(rows)
        return self.size

    def infer_one(self) -> int:
        """Scores 20 samples one at a time."""
        self.model.eval()
        with torch.inference_mode():
            for row in range(20):
                self._scores(slice(row, row + 1))
        return 20

    def scores(self) -> np.ndarray:
        """Returns the scores of the first 32 rows."""
        self.model.eval()
        with torch.inference_mode():
            return self._scores(slice(0, BATCH))

    def peak_bytes(self) -> int | None:
        """Returns the most bytes that tensors took on the GPU; None on a CPU."""
        return torch.cuda.max_memory_allocated() if self.device == "cuda" else None

    def _rows(self, rows) -> list[dict[str, torch.Tensor]]:
        return [{m: x[rows] for m, x in source.items()} for source in (self.features, self.masks)]

    def _scores(self, rows) -> np.ndarray:
        return self._predict(rows).float().cpu().numpy()  # which waits for the device

    def _predict(self, rows) -> torch.Tensor:
        if self.replays:  # the result of the last replay may be overwritten
            torch.compiler.cudagraph_mark_step_begin()
        if self.number != "bfloat16":
            return self.forward(*self._rows(rows))
        with torch.autocast(self.device, torch.bfloat16):
            return self.forward(*self._rows(rows))

    def _take_step(self, rows: torch.Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        error = (self._predict(rows).float() - self.labels[rows]).abs().mean()
        error.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def _as_graph(self):
        """Records one step, as PyTorch's notes on CUDA graphs say for whole networks."""
        self.model.train()
        rows = self.order[:BATCH].clone()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries allocate what they need in their first steps
            for _ in range(3):
                self._take_step(rows)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self._take_step(rows)

        def replay(chosen: torch.Tensor) -> None:
            rows.copy_(chosen)
            graph.replay()

        return replay

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
