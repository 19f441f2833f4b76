# SPDX-License-Identifier: Apache-2.0
"""Sums of reports that lie on a device, from several streams; tests/triton has all else, on a GPU at its sizes."""

import concurrent.futures

import pytest
import torch

import ldpkernels

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("mechanism", ["two-point", "piecewise"])
def test_an_aggregate_counts_reports_where_they_lie(mechanism):
    """From threads, each on a stream of its own: the tally's kernels run one after another."""
    model = torch.linspace(-1, 1, 300_007, device=CUDA)
    made = [
        ldpkernels.report(model, 0.0, 1.0, 2.0, mechanism=mechanism, generator=ldpkernels.key(i)) for i in range(40)
    ]
    host, there = ldpkernels.Aggregate(), ldpkernels.Aggregate()
    host.add(*(ldpkernels.Report(r.layout, r.bits) for r in made))

    def work(some):
        with torch.cuda.stream(torch.cuda.Stream(CUDA)):
            for report in some:
                there.add(report)

    torch.cuda.synchronize()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [made[i::4] for i in range(4)]))
    assert there.clients == 40
    assert there._counter._host.count == 0, "they were copied to the host"
    assert there.to_bytes() == host.to_bytes()
    assert torch.equal(there.mean(), host.mean())
