"""Defines the peers' models in plain PyTorch, as their own programs compute: over padding, too.

Each takes features and lengths `{modality: …}` and returns scores and what its terms need; `loss`
of it is the whole objective of a training step. Sizes and rates are those of msajax's settings.
"""

import itertools

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def stack(*sizes: int) -> nn.Sequential:
    """Makes layers with ReLU behind each."""
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU())))


def packed(x: torch.Tensor, length: torch.Tensor):
    """Packs the valid steps of `[B, T, D]`, as an LSTM of PyTorch reads them."""
    return pack_padded_sequence(x, length.cpu(), batch_first=True, enforce_sorted=False)


class Peer(nn.Module):
    """Has the loss of most: the mean error."""

    def loss(self, found, labels, rows, epoch):
        return (found["score"] - labels).abs().mean()


class Subnet(nn.Module):
    """Makes a vector of a mean."""

    def __init__(self, width, hidden, rate):
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm1d(width), nn.Dropout(rate), stack(width, hidden, hidden, hidden)
        )

    def forward(self, x):
        return self.layers(x.mean(1))


class Vectors(nn.Module):
    """Makes the vectors of TFN and LMF."""

    def __init__(self, own, spec, text_out):
        super().__init__()
        self.subnets = nn.ModuleDict(
            {
                m: Subnet(spec.width(m), getattr(own, f"{m}_hidden"), getattr(own, f"{m}_dropout"))
                for m in ("audio", "video")
            }
        )
        self.lstm = nn.LSTM(spec.width("text"), own.text_hidden, batch_first=True)
        self.linear = nn.Linear(own.text_hidden, text_out)

    def forward(self, features):
        found = [net(features[m]) for m, net in self.subnets.items()]
        _, (state, _) = self.lstm(features["text"])
        found.append(self.linear(state[0]))
        return [torch.cat([torch.ones_like(x[:, :1]), x], 1) for x in found]


class Tfn(Peer):
    """Multiplies the vectors of all modalities."""

    def __init__(self, own, spec):
        super().__init__()
        self.vectors, self.own = Vectors(own, spec, own.text_out), own
        size = (own.text_out + 1) * (own.audio_hidden + 1) * (own.video_hidden + 1)
        self.post = nn.Sequential(
            nn.Dropout(own.post_dropout), stack(size, own.post_fusion, own.post_fusion)
        )
        self.out = nn.Linear(own.post_fusion, 1)

    def forward(self, features, lengths):
        a, v, t = self.vectors(features)
        product = torch.bmm(a.unsqueeze(2), v.unsqueeze(1)).flatten(1)
        product = torch.bmm(product.unsqueeze(2), t.unsqueeze(1)).flatten(1)
        score = torch.sigmoid(self.out(self.post(product)))
        return {"score": score * (self.own.highest - self.own.lowest) + self.own.lowest}


class Lmf(Peer):
    """Multiplies low-rank projections of the vectors."""

    def __init__(self, own, spec):
        super().__init__()
        self.vectors = Vectors(own, spec, own.text_hidden // 2)
        sizes = own.audio_hidden, own.video_hidden, own.text_hidden // 2
        self.factors = nn.ParameterList(torch.randn(own.rank, n + 1, 1) * 0.1 for n in sizes)
        self.weights = nn.Parameter(torch.randn(1, own.rank))
        self.bias = nn.Parameter(torch.zeros(1, 1))

    def forward(self, features, lengths):
        terms = 1
        for x, factor in zip(self.vectors(features), self.factors, strict=True):
            terms = terms * torch.matmul(x, factor)  # [rank, batch, 1]
        score = torch.matmul(self.weights, terms.permute(1, 0, 2)).squeeze(1)
        return {"score": score + self.bias}


class LfDnn(Peer):
    """Joins the vectors of means."""

    def __init__(self, own, spec):
        super().__init__()
        self.subnets = nn.ModuleDict(
            {m: Subnet(spec.width(m), own.hidden, own.dropout) for m in spec.modalities}
        )
        size = own.hidden * len(spec.modalities)
        self.post = nn.Sequential(
            nn.Dropout(own.post_dropout),
            stack(size, own.post_fusion, own.post_fusion),
            nn.Linear(own.post_fusion, 1),
        )

    def forward(self, features, lengths):
        found = [net(features[m]) for m, net in self.subnets.items()]
        return {"score": self.post(torch.cat(found, 1))}


class EfLstm(Peer):
    """Reads the joined features by an LSTM."""

    def __init__(self, own, spec):
        super().__init__()
        self.lstm = nn.LSTM(sum(spec.widths), own.hidden, batch_first=True)
        self.head = nn.Sequential(
            nn.Dropout(own.dropout), stack(own.hidden, own.hidden), nn.Linear(own.hidden, 1)
        )

    def forward(self, features, lengths):
        _, (state, _) = self.lstm(torch.cat(list(features.values()), 2))
        return {"score": self.head(state[0])}


class TextOnly(Peer):
    """Scores the mean of text."""

    def __init__(self, own, spec):
        super().__init__()
        drop, width = nn.Dropout(own.dropout), spec.width("text")
        first, second = stack(width, own.hidden), stack(own.hidden, own.hidden)
        self.layers = nn.Sequential(drop, first, drop, second, drop, nn.Linear(own.hidden, 1))

    def forward(self, features, lengths):
        return {"score": self.layers(features["text"].mean(1))}


class Recurrent(nn.Module):
    """Makes MISA's vector of a sequence."""

    def __init__(self, width):
        super().__init__()
        two_way = {"bidirectional": True, "batch_first": True}
        self.first = nn.LSTM(width, width, **two_way)
        self.second = nn.LSTM(2 * width, width, **two_way)
        self.norm = nn.LayerNorm(2 * width)

    def forward(self, x, length):
        outputs, (first, _) = self.first(packed(x, length))
        outputs, _ = pad_packed_sequence(outputs, batch_first=True)
        _, (second, _) = self.second(packed(self.norm(outputs), length))
        both = torch.stack([first[0], second[0], first[1], second[1]])
        return both.transpose(0, 1).flatten(1)


class Misa(Peer):
    """Parts each modality in private and shared vectors."""

    def __init__(self, own, spec):
        super().__init__()
        h, self.own, self.names = own.hidden, own, spec.modalities
        others = [m for m in self.names if m != "text"]
        self.recurrent = nn.ModuleDict({m: Recurrent(spec.width(m)) for m in others})
        sizes = {m: spec.width(m) * (1 if m == "text" else 4) for m in self.names}
        self.project = nn.ModuleDict(
            {m: nn.Sequential(stack(n, h), nn.LayerNorm(h)) for m, n in sizes.items()}
        )
        self.private = nn.ModuleDict({m: nn.Linear(h, h) for m in self.names})
        self.rebuild = nn.ModuleDict({m: nn.Linear(h, h) for m in self.names})
        self.shared = nn.Linear(h, h)
        self.fusion = nn.TransformerEncoderLayer(h, own.num_heads, own.ff_dim, own.fusion_dropout)
        self.head = nn.Sequential(
            nn.Linear(6 * h, 3 * h), nn.Dropout(own.head_dropout), nn.ReLU(), nn.Linear(3 * h, 1)
        )

    def forward(self, features, lengths):
        found = {"projected": [], "private": [], "shared": [], "rebuilt": []}
        for m in self.names:
            x = features[m]
            x = x.mean(1) if m == "text" else self.recurrent[m](x, lengths[m])
            x = self.project[m](x)
            private, shared = torch.sigmoid(self.private[m](x)), torch.sigmoid(self.shared(x))
            made = x, private, shared, self.rebuild[m](private + shared)
            for kind, vector in zip(found, made, strict=True):
                found[kind].append(vector)
        tokens = torch.stack([*found["private"], *found["shared"]])
        mixed = self.fusion(tokens).transpose(0, 1).flatten(1)
        return found | {"score": self.head(mixed)}

    def loss(self, found, labels, rows, epoch):
        def overlap(a, b):
            a, b = a - a.mean(0), b - b.mean(0)
            a = a / (a.norm(dim=1, keepdim=True).detach() + 1e-6)
            b = b / (b.norm(dim=1, keepdim=True).detach() + 1e-6)
            return (a.t() @ b).square().mean()

        def apart(a, b):
            means = a.mean(0), b.mean(0)
            total = (means[0] - means[1]).norm()
            a, b = a - means[0], b - means[1]
            for power in range(2, 6):
                total = total + ((a**power).mean(0) - (b**power).mean(0)).norm()
            return total

        private, shared, own = found["private"], found["shared"], self.own
        diff = sum(map(overlap, private, shared))
        diff = diff + sum(overlap(a, b) for a, b in itertools.combinations(private, 2))
        sim = sum(apart(a, b) for a, b in itertools.combinations(shared, 2)) / 3
        recon = sum(map(functional.mse_loss, found["rebuilt"], found["projected"])) / 3
        terms = own.diff_weight * diff + own.sim_weight * sim + own.recon_weight * recon
        return functional.mse_loss(found["score"], labels) + terms


class SelfMm(Peer):
    """Scores single modalities, too, against labels that it makes."""

    def __init__(self, own, spec):
        super().__init__()
        self.own, self.names = own, spec.modalities
        others = ("audio", "video")
        self.lstm = nn.ModuleDict(
            {m: nn.LSTM(spec.width(m), getattr(own, f"{m}_lstm"), batch_first=True) for m in others}
        )
        self.linear = nn.ModuleDict(
            {m: nn.Linear(getattr(own, f"{m}_lstm"), getattr(own, f"{m}_out")) for m in others}
        )
        widths = {"text": spec.width("text")} | {m: getattr(own, f"{m}_out") for m in others}
        sizes = {m: (n, getattr(own, f"post_{m}"), getattr(own, f"{m}_dropout"))
                 for m, n in widths.items()}  # fmt: skip
        sizes["fusion"] = sum(widths.values()), own.post_fusion, own.fusion_dropout
        self.drop = nn.ModuleDict({k: nn.Dropout(rate) for k, (_, _, rate) in sizes.items()})
        self.feature = nn.ModuleDict({k: stack(n, size) for k, (n, size, _) in sizes.items()})
        self.head = nn.ModuleDict(
            {k: nn.Sequential(stack(s, s), nn.Linear(s, 1)) for k, (_, s, _) in sizes.items()}
        )
        self.sizes, self.bank = sizes, None

    def forward(self, features, lengths):
        vectors = {"text": features["text"][:, 0]}
        for m, lstm in self.lstm.items():
            _, (state, _) = lstm(packed(features[m], lengths[m]))
            vectors[m] = self.linear[m](state[0])
        vectors["fusion"] = torch.cat(list(vectors.values()), 1)
        found = {k: self.feature[k](self.drop[k](x)) for k, x in vectors.items()}
        scores = {k: self.head[k](x) for k, x in found.items()}
        return {"score": scores["fusion"], "scores": scores, "features": found}

    def remember(self, labels):
        """Begins labels and bank of all samples."""
        self.labels = {k: labels[:, 0].clone() for k in self.sizes}
        self.bank = {k: torch.zeros(len(labels), s) for k, (_, s, _) in self.sizes.items()}

    def loss(self, found, labels, rows, epoch):
        y, total = labels[:, 0], 0
        for k, score in found["scores"].items():
            label = self.labels[k][rows]
            weight = 1 if k == "fusion" else torch.tanh((label - y).abs())
            total = total + (weight * (score[:, 0] - label).abs()).mean()
        with torch.no_grad():
            self.move(found["features"], y, rows, epoch)
        return total

    def move(self, features, y, rows, epoch):
        """Makes labels of single modalities, and keeps features."""

        def lead(k):
            bank, label = self.bank[k], self.labels[k]
            positive, negative = bank[label > 0].mean(0), bank[label < 0].mean(0)
            near = (features[k] - positive).norm(dim=1)
            return ((features[k] - negative).norm(dim=1) - near) / (near + 1e-8)

        of_all = lead("fusion")
        for k in self.names if epoch else ():
            mine = lead(k)
            candidate = 0.5 * mine / (of_all + 1e-8) * y + 0.5 * (y + mine - of_all)
            candidate, rate = candidate.clamp(-3, 3), 2 / (epoch + 2)
            self.labels[k][rows] = (1 - rate) * self.labels[k][rows] + rate * candidate
        for k, feature in features.items():
            self.bank[k][rows] = feature


class Mmim(Peer):
    """Maximises bounds of mutual information."""

    def __init__(self, own, spec):
        super().__init__()
        self.own, self.names, others = own, spec.modalities, ("audio", "video")
        self.lstm = nn.ModuleDict(
            {
                m: nn.LSTM(
                    spec.width(m), getattr(own, f"{m}_lstm"), bidirectional=True, batch_first=True
                )
                for m in others
            }
        )
        outs = {m: getattr(own, f"{m}_out") for m in others}
        self.linear = nn.ModuleDict(
            {m: nn.Linear(2 * getattr(own, f"{m}_lstm"), n) for m, n in outs.items()}
        )
        sizes = {"text": spec.width("text")} | outs
        text = sizes["text"]
        make = lambda n: nn.Sequential(stack(text, n), nn.Linear(n, n))  # noqa: E731
        self.mean = nn.ModuleDict({m: make(n) for m, n in outs.items()})
        self.variance = nn.ModuleDict({m: make(n) for m, n in outs.items()})
        self.small = nn.ModuleDict({m: nn.Linear(n, n // 4) for m, n in outs.items()})
        f = own.fusion
        self.fusion = nn.Sequential(
            nn.Dropout(own.fusion_dropout),
            *(nn.Linear(sum(sizes.values()), f), nn.Tanh(), nn.Linear(f, f), nn.Tanh()),
        )
        self.out = nn.Linear(f, 1)
        self.predict = nn.ModuleDict({m: nn.Linear(f, n) for m, n in sizes.items()})

    def forward(self, features, lengths):
        vectors = {"text": features["text"][:, 0]}
        for m, lstm in self.lstm.items():
            _, (state, _) = lstm(packed(features[m], lengths[m]))
            vectors[m] = self.linear[m](state.transpose(0, 1).flatten(1))
        fused = self.fusion(torch.cat(list(vectors.values()), 1))
        return {"score": self.out(fused), "vectors": vectors, "fused": fused}

    def likelihood(self, found):
        """Averages the log-likelihood of each other modality given text."""
        total, text = 0, found["vectors"]["text"]
        for m in self.mean:
            log_variance = torch.tanh(self.variance[m](text))
            square = (found["vectors"][m] - self.mean[m](text)).square()
            total = total - 0.5 * (square * torch.exp(-log_variance) + log_variance).sum(1)
        return total.mean()

    def loss(self, found, labels, rows, epoch):
        own, nce, entropy = self.own, 0, 0
        for m, x in found["vectors"].items():
            x = functional.normalize(x, dim=1)
            predicted = functional.normalize(self.predict[m](found["fused"]), dim=1)
            nce = nce - ((x * predicted).sum(1) - torch.logsumexp(x @ predicted.t(), 1)).mean()
        for m, linear in self.small.items():
            x = torch.tanh(linear(found["vectors"][m]))
            for group in (labels[:, 0] > 0, labels[:, 0] < 0):
                spread = torch.cov(x[group].t(), correction=0)
                spread = spread + 1e-6 * torch.eye(len(spread))
                entropy = entropy + 0.25 * torch.logdet(spread)
        error, bound = super().loss(found, labels, rows, epoch), self.likelihood(found) + entropy
        return error + own.nce_weight * nce - own.bound_weight * bound


class Attention(nn.Module):
    """Attends by PyTorch's fused call."""

    def __init__(self, size, heads, rate, head_dim=None, bias=True):
        super().__init__()
        width = heads * head_dim if head_dim else size
        self.query, self.key, self.value = (nn.Linear(size, width, bias=bias) for _ in range(3))
        self.out, self.heads, self.rate = nn.Linear(width, size), heads, rate

    def forward(self, query, keys, values, mask=None):
        def split(x):
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        found = functional.scaled_dot_product_attention(
            split(self.query(query)),
            split(self.key(keys)),
            split(self.value(values)),
            attn_mask=mask,
            dropout_p=self.rate if self.training else 0.0,
        )
        return self.out(found.transpose(1, 2).flatten(-2))


class CrossEncoder(nn.Module):
    """Lets a sequence read another one, as MulT and DLF do."""

    def __init__(self, own, size, layers, rate):
        super().__init__()
        self.own = own
        self.attention = nn.ModuleList(Attention(size, own.num_heads, rate) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2 * layers + 1))
        self.inner = nn.ModuleList(nn.Linear(size, 4 * size) for _ in range(layers))
        self.outer = nn.ModuleList(nn.Linear(4 * size, size) for _ in range(layers))

    def positioned(self, x):
        x = x * x.shape[-1] ** 0.5
        if self.own.positions:
            half = x.shape[-1] // 2
            frequency = torch.exp(torch.arange(half) * (-9.210340371976184 / (half - 1)))
            angle = torch.arange(1, x.shape[1] + 1)[:, None] * frequency
            table = torch.cat([angle.sin(), angle.cos()], 1)
            x = x + functional.pad(table, (0, x.shape[-1] - table.shape[1]))
        return functional.dropout(x, self.own.embed_dropout, self.training)

    def forward(self, x, context=None):
        own, queries = self.own, x.shape[1]
        keys = queries if context is None else context.shape[1]
        x = self.positioned(x)
        context = None if context is None else self.positioned(context)
        mask = torch.ones(queries, keys, dtype=torch.bool).tril(abs(keys - queries))
        for i, attention in enumerate(self.attention):
            query = self.norms[2 * i](x)
            read = query if context is None else self.norms[2 * i](context)
            found = attention(query, read, read, mask)
            x = x + functional.dropout(found, own.residual_dropout, self.training)
            hidden = functional.relu(self.inner[i](self.norms[2 * i + 1](x)))
            hidden = functional.dropout(hidden, own.relu_dropout, self.training)
            fed = functional.dropout(self.outer[i](hidden), own.residual_dropout, self.training)
            x = x + fed
        return self.norms[-1](x)


class Refine(nn.Module):
    """Adds two layers of a vector to it."""

    def __init__(self, size, rate):
        super().__init__()
        self.layers = nn.Sequential(stack(size, size), nn.Dropout(rate), nn.Linear(size, size))

    def forward(self, x):
        return x + self.layers(x)


def rate_to(own, m):
    """Returns the rate of attention to a modality."""
    return own.attention_dropout if m == "text" else getattr(own, f"{m}_attention_dropout")


def convolutions(own, spec):
    """Makes the projections of MulT and DLF."""
    return nn.ModuleDict(
        {
            m: nn.Conv1d(spec.width(m), own.d_model, getattr(own, f"{m}_kernel"), bias=False)
            for m in spec.modalities
        }
    )


def projected(projections, own, features, training):
    """Projects all modalities, `{modality: [B, T', d]}`."""
    text = functional.dropout(features["text"], own.text_dropout, training)
    features = {**features, "text": text}
    return {m: net(features[m].transpose(1, 2)).transpose(1, 2) for m, net in projections.items()}


class Mult(Peer):
    """Lets every modality read each other one."""

    def __init__(self, own, spec):
        super().__init__()
        self.own, self.names, d = own, spec.modalities, own.d_model
        self.projections = convolutions(own, spec)
        self.pairs = list(itertools.permutations(self.names, 2))
        self.between = nn.ModuleList(
            CrossEncoder(own, d, own.num_layers, rate_to(own, other)) for _, other in self.pairs
        )
        layers = max(own.num_layers, 3)
        self.memory = nn.ModuleDict(
            {m: CrossEncoder(own, 2 * d, layers, own.attention_dropout) for m in self.names}
        )
        self.post = Refine(6 * d, own.out_dropout)
        self.out = nn.Linear(6 * d, 1)

    def forward(self, features, lengths):
        x = projected(self.projections, self.own, features, self.training)
        found = {m: [] for m in self.names}
        for (m, other), net in zip(self.pairs, self.between, strict=True):
            found[m].append(net(x[m], x[other]))
        last = [self.memory[m](torch.cat(found[m], 2))[:, -1] for m in self.names]
        return {"score": self.out(self.post(torch.cat(last, 1)))}


class Dlf(Peer):
    """Parts each modality in its own and in what all share."""

    def __init__(self, own, spec):
        super().__init__()
        self.own, self.names, d, depth = own, spec.modalities, own.d_model, own.num_layers
        others = [m for m in self.names if m != "text"]

        def encoders(names, layers, rates):
            return nn.ModuleDict({m: CrossEncoder(own, d, layers, rates(m)) for m in names})

        self.projections = convolutions(own, spec)
        self.private = encoders(self.names, depth, lambda m: rate_to(own, m))
        self.common = encoders(self.names, depth, lambda m: rate_to(own, m))
        self.between = encoders(others, depth, lambda m: rate_to(own, m))
        self.memory = encoders(others, max(depth, 3), lambda m: own.attention_dropout)
        self.shared = CrossEncoder(own, d, depth, own.attention_dropout)
        self.text = CrossEncoder(own, d, depth, own.attention_dropout)
        linear = {m: nn.Linear(2 * d, d, bias=False) for m in self.names}
        self.decoder = nn.ModuleDict(linear)
        steps = {m: spec.length(m) - getattr(own, f"{m}_kernel") + 1 for m in self.names}
        self.vector = nn.ModuleDict({m: nn.Linear(n * d, d) for m, n in steps.items()})
        sizes = dict.fromkeys(self.names, d) | {"shared": 3 * d}
        self.refine = nn.ModuleDict({k: Refine(n, own.out_dropout) for k, n in sizes.items()})
        self.head = nn.ModuleDict({k: nn.Linear(n, 1) for k, n in sizes.items()})
        self.gate = nn.ModuleDict({k: nn.Linear(n, n) for k, n in sizes.items()})
        self.post, self.out = Refine(6 * d, own.out_dropout), nn.Linear(6 * d, 1)

    def forward(self, features, lengths):
        x = projected(self.projections, self.own, features, self.training)
        private = {m: self.private[m](x[m]) for m in self.names}
        shared = {m: self.shared(x[m]) for m in self.names}
        rebuilt = {
            m: self.decoder[m](torch.cat([private[m], shared[m]], 2)) for m in self.names
        }
        found = {"x": x, "private": private, "shared": shared, "rebuilt": rebuilt}
        found["again"] = {m: self.private[m](rebuilt[m]) for m in self.names}
        vectors = [self.vector[m](shared[m].flatten(1)) for m in self.names]
        common = torch.cat([self.common[m](shared[m])[:, -1] for m in self.names], 1)
        scores = {"shared": self.head["shared"](self.refine["shared"](common))}
        parts = []
        for m in self.names:
            read = self.text(private["text"]) if m == "text" else self.memory[m](
                self.between[m](private["text"], private[m])
            )
            last = self.refine[m](read[:, -1])
            scores[m] = self.head[m](last)
            parts.append(torch.sigmoid(self.gate[m](last)))
        parts.append(torch.sigmoid(self.gate["shared"](common)))
        score = self.out(self.post(torch.cat(parts, 1)))
        return found | {"scores": scores, "score": score, "vectors": torch.stack(vectors, 1)}

    def loss(self, found, labels, rows, epoch):
        own, total = self.own, super().loss(found, labels, rows, epoch)
        for k, score in found["scores"].items():
            total = total + (own.text_weight if k == "text" else 1) * (score - labels).abs().mean()
        for m in self.names:
            error = functional.mse_loss(found["rebuilt"][m], found["x"][m])
            total = total + own.rebuilt_weight * error
            error = functional.mse_loss(found["again"][m], found["private"][m])
            total = total + own.again_weight * error
            alike = functional.cosine_similarity(found["private"][m], found["shared"][m], -1)
            total = total + own.apart_weight * functional.relu(alike).mean()
        unit = functional.normalize(found["vectors"].flatten(0, 1), dim=1)
        near, y = unit @ unit.t(), labels.repeat_interleave(3, 0)[:, 0]
        apart = (y[:, None] - y).abs()
        same, losses = (apart == 0) & ~torch.eye(len(y), dtype=torch.bool), []
        for i in range(len(y)):
            other = apart[i] > 0
            excess = 0.15 * apart[i, other, None] + near[i, other, None] - near[i, same[i]]
            losses.append(functional.relu(excess).mean())
        return total + own.near_weight * torch.stack(losses).mean()


class Block(nn.Module):
    """Applies ALMT's attention and feed-forward network."""

    def __init__(self, own, heads, ff):
        super().__init__()
        d = own.d_model
        self.attention = Attention(d, heads, 0.0, own.head_dim, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(4))
        self.ff = nn.Sequential(nn.Linear(d, ff), nn.GELU(), nn.Linear(ff, d))

    def forward(self, x, source):
        query, keys, values = self.norms[0](x), self.norms[1](source), self.norms[2](source)
        x = x + self.attention(query, keys, values)
        return x + self.ff(self.norms[3](x))


class Almt(Peer):
    """Lets text ask the other modalities by a few tokens."""

    def __init__(self, own, spec):
        super().__init__()
        self.own, self.names, d, n = own, spec.modalities, own.d_model, own.num_tokens
        self.projections = nn.ModuleDict({m: nn.Linear(spec.width(m), d) for m in self.names})
        for m in self.names:
            self.register_parameter(f"{m}_tokens", nn.Parameter(torch.zeros(n, d)))
            positions = nn.Parameter(torch.randn(n + spec.length(m), d))
            self.register_parameter(f"{m}_positions", positions)
        embed = {m: Block(own, own.embed_heads, own.embed_ff) for m in self.names}
        self.embed = nn.ModuleDict(embed)
        self.positions = nn.Parameter(torch.randn(n, d))
        self.text = nn.ModuleList(
            Block(own, own.text_heads, own.text_ff) for _ in range(own.hyper_depth - 1)
        )
        self.hyper = nn.Parameter(torch.ones(n, d))
        self.asking = nn.ModuleList(
            nn.ModuleDict(
                {m: Attention(d, own.hyper_heads, 0.0, own.hyper_head_dim, bias=False)
                 for m in ("audio", "video")}
            )
            for _ in range(own.hyper_depth)
        )  # fmt: skip
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(4 * own.hyper_depth))
        self.token = nn.Parameter(torch.zeros(1, 1, d))
        self.fused_positions = nn.ParameterList(torch.randn(n + 1, d) for _ in range(2))
        self.fusion = nn.ModuleList(
            Block(own, own.fusion_heads, own.fusion_ff) for _ in range(own.fusion_depth)
        )
        self.out = nn.Linear(d, 1)

    def forward(self, features, lengths):
        batch, tokens = len(features["text"]), {}
        for m in self.names:
            first = getattr(self, f"{m}_tokens").expand(batch, -1, -1)
            x = torch.cat([first, self.projections[m](features[m])], 1)
            x = x + getattr(self, f"{m}_positions")[: x.shape[1]]
            tokens[m] = self.embed[m](x, x)[:, : self.own.num_tokens]
        scales = [tokens["text"] + self.positions]
        for block in self.text:
            scales.append(block(scales[-1], scales[-1]))
        hyper = self.hyper.expand(batch, -1, -1)
        for i, (asking, scale) in enumerate(zip(self.asking, scales, strict=True)):
            norms = self.norms[4 * i : 4 * i + 4]
            query = norms[0](scale)
            audio, video = norms[1](tokens["audio"]), norms[2](tokens["video"])
            found = asking["audio"](query, audio, audio) + asking["video"](query, video, video)
            hyper = norms[3](hyper) + found
        token = self.token.expand(batch, -1, -1)
        source = torch.cat([token, hyper], 1) + self.fused_positions[0]
        x = torch.cat([token, scales[-1]], 1) + self.fused_positions[1]
        for block in self.fusion:
            x = block(x, source)
        return {"score": self.out(x[:, 0])}

    def loss(self, found, labels, rows, epoch):
        return functional.mse_loss(found["score"], labels)


PEERS = {
    "tfn": Tfn, "lmf": Lmf, "lf_dnn": LfDnn, "ef_lstm": EfLstm, "text_only": TextOnly,
    "misa": Misa, "self_mm": SelfMm, "mmim": Mmim, "mult": Mult, "dlf": Dlf, "almt": Almt,
}  # fmt: skip
