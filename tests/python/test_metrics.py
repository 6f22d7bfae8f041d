# SPDX-License-Identifier: Apache-2.0
"""torch.hpu.metrics: graphs are counted by shapes, contexts nest, the file has what its triggers ask for."""

import json
import os
import subprocess
import sys

import pytest
import torch

metrics = torch.hpu.metrics


def total(metric, name="TotalNumber"):
    return dict(metric.stats())[name]


def run(lengths):
    for length in lengths:
        torch.ones(length, 3, device="hpu").exp()
        metrics.mark_step()


def test_contexts_nest():
    everything = metrics.metric_global("graph_compilation")
    before, found = total(everything), []
    with metrics.metric_localcontext("graph_compilation") as outer:
        for first, count in ((101, 3), (104, 2), (106, 3), (109, 2)):
            with metrics.metric_localcontext("graph_compilation") as inner:
                run(range(first, first + count))
            found.append(total(inner))
    run([120])
    assert found == [3, 2, 3, 2] and total(outer) == 10 and total(everything) - before == 11
    assert everything.stats()[1:] == [("TotalTime", 0), ("AvgTime", 0.0)]


def test_one_shape_is_one_graph():
    with metrics.metric_localcontext("recipe_cache") as cache:
        run([131] * 10)
    stats = dict(cache.stats())
    assert (stats["TotalMiss"], stats["TotalHit"]) == (1, 9)
    assert list(stats["RecipeMiss"]) == list(stats["RecipeHit"]) and list(stats["RecipeHit"].values()) == [9]


def test_what_the_host_reads():
    with metrics.metric_localcontext("graph_compilation") as metric:
        x = torch.ones(141, 3, device="hpu")
        x[x > 0]
        metrics.mark_step()
    assert any("aten::index.Tensor" in line for line in metric.host_reads())
    assert metric.new_graphs() and "[141, 3]" in metric.new_graphs()[0]


class Positive(torch.nn.Module):
    def forward(self, x):
        return x[x > 0]


class Fails(torch.nn.Module):
    def forward(self, x):
        raise ValueError("fails")


def test_modules_are_named():
    net = torch.nn.Sequential(torch.nn.Linear(151, 7), torch.nn.Sequential(torch.nn.ReLU(), Positive())).to("hpu")
    x = torch.ones(2, 151, device="hpu")
    with metrics.metric_localcontext("graph_compilation") as metric:
        with pytest.raises(ValueError):
            torch.nn.Sequential(Fails())(x)
        net(x).sum().backward()
        metrics.mark_step()
    assert any("module '0', aten::addmm" in line for line in metric.new_graphs()), metric.new_graphs()
    assert any("module '1.1', aten::index.Tensor" in line for line in metric.host_reads()), metric.host_reads()
    assert not torch.nn.modules.module._global_forward_pre_hooks and not torch.nn.modules.module._global_forward_hooks


def test_refusals(tmp_path):
    with pytest.raises(RuntimeError, match="found 'graphs', allowed: graph_compilation, "):
        metrics.metric_global("graphs")
    with pytest.raises(RuntimeError, match="found 'xml', allowed: json, text"):
        metrics.metrics_dump(tmp_path / "m", "xml")
    with pytest.raises(RuntimeError, match="no/such/place"):
        metrics.metrics_dump(tmp_path / "no/such/place")


SCRIPT = """
import torch
for length in (1, 1, 2):
    torch.ones(length, 3, device="hpu").exp()
    torch.hpu.metrics.mark_step()
"""


def written(tmp_path, **environment):
    done = subprocess.run([sys.executable, "-c", SCRIPT], env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return done.stderr


def test_the_file(tmp_path):
    file = tmp_path / "metrics.json"
    written(tmp_path, PT_HPU_METRICS_FILE=str(file), PT_HPU_METRICS_DUMP_TRIGGERS="process_exit,metric_change")
    records = json.loads(file.read_text())
    assert {r["triggered_by"] for r in records} == {"process_exit", "metric_change"}
    assert all(set(r) == {"metric_name", "triggered_by", "generated_on", "statistics"} for r in records)
    last = {r["metric_name"]: r["statistics"] for r in records if r["triggered_by"] == "process_exit"}
    assert len(last) == 4 and last["graph_compilation"]["TotalNumber"] == 2 and last["recipe_cache"]["TotalHit"] == 1


def test_the_file_of_a_rank_as_text(tmp_path):
    written(tmp_path, PT_HPU_METRICS_FILE=str(tmp_path / "m.txt"), PT_HPU_METRICS_FILE_FORMAT="text", RANK="3", WORLD_SIZE="4")
    assert "metric_name: graph_compilation\n" in (tmp_path / "m-rank3.txt").read_text() and not (tmp_path / "m.txt").exists()


def test_a_file_that_cannot_be_written(tmp_path):
    stderr = written(tmp_path, PT_HPU_METRICS_FILE=str(tmp_path / "no/such/place.json"))
    assert stderr.count("PT_HPU_METRICS_FILE") == 1 and "can't be written" in stderr
