# SPDX-License-Identifier: Apache-2.0
"""fp8.evaluate(): what a model loses, in the numbers of `fp8 evaluate`."""

import dataclasses
import math
import typing

import torch


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """loss: mean negative log-likelihood of a token, nats; tokens: how many were judged (all but a chunk's first). Against
    a reference, after each token, a chunk's last one too: kl, nats, and the share with the same most likely successor."""
    loss: float
    tokens: int
    chunks: int
    reference_loss: typing.Optional[float] = None
    kl: typing.Optional[float] = None
    top1_agreement: typing.Optional[float] = None

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)


def _logits(model: torch.nn.Module, chunk: torch.Tensor) -> torch.Tensor:
    """[L, vocabulary], f32, on the host."""
    answer = model(chunk.unsqueeze(0).to(next(model.parameters()).device))
    logits = answer if isinstance(answer, torch.Tensor) else answer.logits
    return typing.cast(torch.Tensor, logits[0].float().cpu())


def evaluate(model: torch.nn.Module, tokens: torch.Tensor, reference: typing.Optional[torch.nn.Module] = None, seq_len: int = 2048) -> Evaluation:
    """Perplexity over chunks of seq_len tokens, the last one shorter, as the program counts.

    tokens: int64 [n]; reference: the model in high precision. Raises ValueError for fewer than two tokens."""
    tokens = tokens.flatten()
    if tokens.numel() < 2 or seq_len < 2:
        raise ValueError(f"evaluate: found {tokens.numel()} tokens in chunks of {seq_len}, expected two or more")
    chunks = [chunk for chunk in tokens.split(seq_len) if chunk.numel() > 1]
    loss = reference_loss = kl = agreed = 0.0
    count, positions = 0, sum(chunk.numel() for chunk in chunks)
    with torch.inference_mode():
        for chunk in chunks:
            targets, q = chunk[1:].cpu(), _logits(model, chunk).log_softmax(-1)
            loss -= float(q[:-1].gather(1, targets[:, None]).double().sum())
            count += targets.numel()
            if reference is None:
                continue
            p = _logits(reference, chunk).log_softmax(-1)
            reference_loss -= float(p[:-1].gather(1, targets[:, None]).double().sum())
            kl += float((p.exp() * (p - q)).sum(-1).double().sum())
            agreed += int((p.argmax(-1) == q.argmax(-1)).sum())
    if reference is None:
        return Evaluation(loss / count, count, len(chunks))
    return Evaluation(loss / count, count, len(chunks), reference_loss / count, kl / positions, agreed / positions)
