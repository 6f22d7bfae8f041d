# SPDX-License-Identifier: Apache-2.0
"""How many graphs a program would compile on Gaudi, and what makes each new one, with the names of Habana's module.

    >>> import torch, fp8
    >>> with torch.hpu.metrics.metric_localcontext("graph_compilation") as metric:
    ...     for length in (4, 4, 6):
    ...         _ = torch.ones(length, 2, device="hpu").exp()
    ...         torch.hpu.metrics.mark_step()
    >>> metric.stats()[0], metric.new_graphs()
    (('TotalNumber', 2), ['step 1: aten::fill_.Scalar of [4, 2] Float', 'step 3: aten::fill_.Scalar of [6, 2] Float'])

A graph is what lies between two marks, or between a mark and a value that the host reads. Operations are counted from the first
call of this module on, or from the start where PT_HPU_METRICS_FILE names a file; they have run when they return, so times are 0."""

import contextlib
import json
import os
import typing

import torch

from fp8._names import named

__all__ = ["Metric", "mark_step", "metric_global", "metric_localcontext", "metrics_dump"]


class Metric:
    """One of graph_compilation, cpu_fallback, memory_defragmentation, recipe_cache. Raises RuntimeError for another name."""

    def __init__(self, name: str, from_now: bool) -> None:
        self.name: str = name
        self._counts: typing.Any = torch.classes.fp8_graphs.Metrics(from_now)
        self.stats()

    def stats(self) -> list[tuple[str, typing.Any]]:
        """Names and values, as of now; of a context that has ended as of its end."""
        return list(json.loads(self._counts.json(self.name)).items())

    def new_graphs(self) -> list[str]:
        """For each graph that differs from all before it, the operation that makes it new: step, module, sizes."""
        return list(self._counts.new_graphs())

    def host_reads(self) -> list[str]:
        """What the host reads of the device, which ends a graph each time: module, operation, how often since the start."""
        return list(self._counts.host_reads())


def metric_global(name: str) -> Metric:
    """Of all that was counted."""
    return Metric(name, from_now=False)


@contextlib.contextmanager
def metric_localcontext(name: str) -> typing.Iterator[Metric]:
    """Of the operations within, with the names of the modules that call them. A graph belongs where it ends."""
    metric = Metric(name, from_now=True)
    try:
        with named():
            yield metric
    finally:
        metric._counts.stop()


def metrics_dump(file: typing.Union[str, "os.PathLike[str]"], format: str = "json") -> None:  # noqa: A002: Habana's name
    """All four, as "json" or "text". Raises RuntimeError for another format, or a file that can't be written."""
    torch.classes.fp8_graphs.Metrics.dump(os.fspath(file), format)


def mark_step(device_str: str = "", sync: bool = False) -> None:
    """A step is done: what follows is another graph. In lazy mode (PT_HPU_LAZY_MODE=1) its operations run; sync waits for them."""
    del device_str
    torch.classes.fp8_graphs.Metrics.mark_step(sync)
