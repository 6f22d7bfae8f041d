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
    """[1, L, vocabulary], on the host."""
    answer = model(chunk.unsqueeze(0).to(next(model.parameters()).device))
    return typing.cast(torch.Tensor, answer if isinstance(answer, torch.Tensor) else answer.logits).cpu()


def evaluate(model: torch.nn.Module, tokens: torch.Tensor, reference: typing.Optional[torch.nn.Module] = None, seq_len: int = 2048) -> Evaluation:
    """Perplexity over chunks of seq_len tokens, the last one shorter, as the program counts.

    tokens: int64 [n]; reference: the model in high precision. Raises ValueError for fewer than two tokens."""
    tokens = tokens.flatten()
    if tokens.numel() < 2 or seq_len < 2:
        raise ValueError(f"evaluate: found {tokens.numel()} tokens in chunks of {seq_len}, expected two or more")
    chunks = [chunk for chunk in tokens.split(seq_len) if chunk.numel() > 1]
    count, positions = sum(chunk.numel() - 1 for chunk in chunks), sum(chunk.numel() for chunk in chunks)
    sums = torch.zeros(4, dtype=torch.float64)
    with torch.inference_mode():
        for chunk in chunks:
            logits, *others = (_logits(judged, chunk) for judged in (model, reference) if judged is not None)
            sums += torch.tensor(torch.ops.fp8.score_logits(logits, chunk.unsqueeze(0).cpu(), *others), dtype=torch.float64)
    loss, reference_loss, kl, agreed = sums.tolist()
    against = (reference_loss / count, kl / positions, agreed / positions) if reference is not None else ()
    return Evaluation(loss / count, count, len(chunks), *against)
