"""The transformer equals its formulas, packs documents, starts as documented, costs what it says, and keeps muP."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from language_models import LENGTH, VOCAB_SIZE, gpt
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from hydrant.errors import ConfigError
from hydrant.extensions.language import GPT
from hydrant.extensions.language.gpt import _constant
from hydrant.models import repeated_blocks
from hydrant.optimizers.param_groups import mup_scales

CHOICES: dict[str, dict[str, Any]] = {
    "default": {"zero_init": False},
    "grouped": {"zero_init": False, "num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "logit_softcap": 2.0},
    "gpt2": {"zero_init": False, "positions": "learned", "norm": "layer", "activation": "gelu",
             "tie_embeddings": True, "qk_norm": False},
    "relu2": {"zero_init": False, "activation": "relu2", "positions": "none", "hidden_width": 20},
    "mup": {"zero_init": False, "mup_base_width": 4},
}  # fmt: skip


def tokens(num_samples: int = 3) -> Tensor:
    return torch.randint(VOCAB_SIZE, (num_samples, LENGTH), generator=torch.Generator().manual_seed(1))


def build(seed: int = 0, **changed: Any) -> GPT:
    torch.manual_seed(seed)
    return gpt(**changed)


def reference(model: GPT, ids: Tensor, choice: dict[str, Any]) -> Tensor:
    """Compute the logits of one sequence with loops over heads and complex numbers, from the weights alone."""
    w = {name: p.detach() for name, p in model.named_parameters()}
    heads, width = choice.get("num_heads", 2), 16
    size = choice.get("head_dim", width // heads)
    groups = heads // choice.get("num_kv_heads", heads)
    ratio = width / choice["mup_base_width"] if "mup_base_width" in choice else 1.0
    scale = math.sqrt(size / ratio) / size if ratio != 1 else size**-0.5

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if choice.get("norm") == "layer" else x
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    def turn(x: Tensor) -> Tensor:
        if choice.get("positions", "rope") != "rope":
            return x
        half = size // 2
        pairs = torch.complex(x[:, :half], x[:, half:])
        angles = torch.arange(len(x))[:, None] * 10000.0 ** (-torch.arange(half) * 2 / size)
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], dim=-1)

    def activate(name: str, x: Tensor) -> Tensor:
        up = x @ w[f"{name}.up.weight"].T
        match choice.get("activation", "swiglu"):
            case "swiglu":
                gate = x @ w[f"{name}.gate.weight"].T
                return gate * gate.sigmoid() * up
            case "gelu":
                return up * (1 + torch.erf(up / math.sqrt(2))) / 2
            case _:
                return up.clamp(min=0) ** 2

    x = w["embedding.weight"][ids]
    x = x + w["positions.weight"][: len(ids)] if "positions.weight" in w else x
    for n in range(2):
        block, y = f"blocks.{n}", norm(x, w[f"blocks.{n}.attention_norm.weight"])
        q, k, v = (y @ w[f"{block}.attention.{part}.weight"].T for part in ("query", "key", "value"))
        mixed = []
        for head in range(heads):
            mine = slice(head * size, (head + 1) * size)
            shared = slice(head // groups * size, (head // groups + 1) * size)
            qh, kh = q[:, mine], k[:, shared]
            if choice.get("qk_norm", True):
                qh = norm(qh, w[f"{block}.attention.query_norm.weight"])
                kh = norm(kh, w[f"{block}.attention.key_norm.weight"])
            scores = turn(qh) @ turn(kh).T * scale
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
            mixed.append(scores.softmax(-1) @ v[:, shared])
        x = x + torch.cat(mixed, dim=-1) @ w[f"{block}.attention.output.weight"].T
        hidden = activate(f"{block}.feed_forward", norm(x, w[f"{block}.feed_forward_norm.weight"]))
        x = x + hidden @ w[f"{block}.feed_forward.down.weight"].T
    logits = norm(x, w["norm.weight"]) @ w.get("readout.weight", w["embedding.weight"]).T / ratio
    cap = choice.get("logit_softcap")
    return logits if cap is None else cap * torch.tanh(logits / cap)


@pytest.mark.parametrize("name", CHOICES)
def test_the_logits_are_those_of_the_formulas(name: str) -> None:
    model = build(**CHOICES[name]).double()
    for p in model.parameters():  # also the norms, which start at 1
        p.data += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())).double()
    logits, ids = model(tokens()), tokens()
    for row, sequence in zip(logits, ids, strict=True):
        # Angles are float32 by design.
        torch.testing.assert_close(row, reference(model, sequence, CHOICES[name]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positions", ["rope", "learned", "none"])
def test_a_packed_document_is_seen_as_if_it_were_alone(positions: str) -> None:
    model, ids = build(zero_init=False, positions=positions), tokens(1)
    documents = torch.tensor([[0] * 5 + [1] * 3 + [2] * (LENGTH - 8)])
    packed = model({"tokens": ids, "documents": documents})
    alone = torch.cat([model(part) for part in (ids[:, :5], ids[:, 5:8], ids[:, 8:])], dim=1)
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(packed, model(ids), atol=1e-3)


def test_no_token_sees_a_later_one() -> None:
    model, ids = build(zero_init=False, num_kv_heads=1), tokens(1)
    changed = ids.clone()
    changed[0, 9:] = (ids[0, 9:] + 1) % VOCAB_SIZE
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-3)


def saved_and_gradients(model: GPT) -> tuple[int, list[Tensor | None]]:
    """Return the number of tensors that the forward pass keeps, and the gradients."""
    torch.manual_seed(5)
    saved = list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        loss = F.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten())
    loss.backward()
    return len(saved), [p.grad for p in model.parameters()]


def test_checkpointed_activations_give_the_same_gradients() -> None:
    plain, checkpointed = (
        saved_and_gradients(build(zero_init=False, dropout=0.2, activation_checkpointing=is_on))
        for is_on in (False, True)
    )
    assert checkpointed[0] < plain[0] / 3
    assert all(map(torch.equal, plain[1], checkpointed[1]))  # type: ignore[arg-type]


def test_the_first_weights_have_the_documented_sizes() -> None:
    model = build(width=256, num_heads=4, num_layers=8, zero_init=False, vocab_size=512)
    w = {name: p.detach() for name, p in model.named_parameters()}
    expected = {
        "embedding.weight": 0.02,
        "readout.weight": 256**-0.5,
        "blocks.3.attention.query.weight": 256**-0.5,
        "blocks.3.attention.output.weight": 256**-0.5 / 4,  # sqrt(2 x 8 layers)
        "blocks.3.feed_forward.up.weight": 256**-0.5,
        "blocks.3.feed_forward.down.weight": 688**-0.5 / 4,  # 8 / 3 x 256, rounded up
    }
    assert {name: float(w[name].std()) for name in expected} == pytest.approx(expected, rel=0.02)
    wide = build(width=256, num_heads=4, mup_base_width=64, zero_init=False, vocab_size=512)
    readout = dict(wide.named_parameters())["readout.weight"].detach()
    assert float(readout.std()) == pytest.approx(64**-0.5, rel=0.02)


def test_zero_init_predicts_every_token_alike() -> None:
    model = build()
    assert torch.equal(model(tokens()), torch.zeros(3, LENGTH, VOCAB_SIZE))
    assert len(repeated_blocks(model)) == 2  # for compile.scope=blocks and parallel=fsdp


@pytest.mark.parametrize("name", CHOICES)
def test_a_token_costs_the_documented_flops(name: str) -> None:
    model = build(**CHOICES[name])
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(tokens(2))
    readout = 0 if model.readout is not None else model.embedding.weight.numel()
    weights = sum(p.numel() for p in model.parameters() if p.ndim == 2) + readout
    weights -= sum(p.numel() for n, p in model.named_parameters() if n.startswith(("embedding", "positions")))
    heads = CHOICES[name].get("num_heads", 2)
    size = CHOICES[name].get("head_dim", 16 // heads)
    assert counter.get_total_flops() == 2 * LENGTH * (2 * weights + 4 * LENGTH * heads * size * 2)


@pytest.mark.parametrize(
    ("changed", "key", "message"),
    [
        ({"num_heads": 3}, "num_heads", "3 heads do not divide model.width=16"),
        ({"mup_base_head_dim": 8}, "mup_base_head_dim", "give model.mup_base_width too"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changed: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        gpt(**changed)
    assert error.value.key == f"model.{key}"


def test_a_sequence_that_is_too_long_is_refused() -> None:
    with pytest.raises(ConfigError, match="is 16, but a sequence has 17 tokens"):
        gpt()(torch.zeros(1, LENGTH + 1, dtype=torch.long))


def test_at_its_base_width_mup_changes_nothing() -> None:
    plain, mup = build(zero_init=False), build(zero_init=False, mup_base_width=16)
    assert torch.equal(plain(tokens()), mup(tokens()))
    assert all(scale == 1 for _, scale in mup_scales(mup, "adam").values())
    assert plain.mup_roles() == {}


class Orthogonal(torch.optim.Optimizer):
    """Muon without momentum, with an exact orthogonalization, scaled to the size of AdamW's updates."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                left, _, right = torch.linalg.svd(p.grad, full_matrices=False)
                p.data.sub_(left @ right, alpha=group["lr"] * 0.2 * max(p.shape) ** 0.5)


def moved(width: int, rule: str, *, is_mup: bool) -> dict[str, float]:
    """Return how far four updates move what each layer adds to the residual stream, and the logits (rms)."""
    model = build(
        width=width, num_heads=4, vocab_size=64, embedding_std=0.5, mup_base_width=32 if is_mup else None
    )
    scales = mup_scales(model, rule if is_mup else None)
    by_kind: dict[Any, list[dict[str, Any]]] = {torch.optim.Adam: [], Orthogonal: []}
    for name, p in model.named_parameters():
        is_matrix = name.startswith("blocks.") and p.ndim == 2
        kind = Orthogonal if rule == "muon" and is_matrix else torch.optim.Adam
        by_kind[kind].append({"params": [p], "lr": 2e-3 * scales.get(name, ("", 1.0))[1]})
    optimizers = [kind(groups, {"lr": 0.0}) if kind is Orthogonal else kind(groups)
                  for kind, groups in by_kind.items() if groups]  # fmt: skip
    ids = torch.randint(64, (8, LENGTH + 1), generator=torch.Generator().manual_seed(2))
    outputs: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if name.endswith(("attention", "feed_forward")):
            module.register_forward_hook(
                lambda _, __, output, name=name: outputs.update({name: output.detach()})
            )

    def run() -> dict[str, Tensor]:
        logits = model(ids[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        return {**outputs, "logits": logits.detach()}

    first = run()
    for _ in range(4):
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        last = run()
    return {name: float((last[name] - first[name]).square().mean().sqrt()) for name in first}


@pytest.mark.parametrize("rule", ["adam", pytest.param("muon", marks=pytest.mark.slow)])
def test_with_mup_updates_move_activations_as_far_at_every_width(rule: str) -> None:
    by_width = [moved(width, rule, is_mup=True) for width in (32, 96, 256)]
    narrow, wide = (moved(width, rule, is_mup=False) for width in (32, 256))
    for name in narrow:
        values = [each[name] for each in by_width]
        assert max(values) < 1.6 * min(values), name
        assert wide[name] > 2.5 * narrow[name], name


def test_dropout_is_for_training_only() -> None:
    model = build(zero_init=False, dropout=0.5)
    assert not torch.equal(model(tokens()), model(tokens()))
    model.eval()
    assert torch.equal(model(tokens()), model(tokens()))
    assert sum(isinstance(m, nn.Dropout) for m in model.modules()) == 3


def test_a_constant_of_graphs_is_marked_as_torch_does_it() -> None:
    public: Any = torch.compiler.assume_constant_result(lambda: 1)
    assert vars(_constant(lambda: 1)) == vars(public)
