# SPDX-License-Identifier: Apache-2.0
from ldpkernels.common.arrays import Floats, Laws, Spans

MECHANISMS: frozenset[str]

def launch(
    mechanism: str,
    output: str,
    spans: Spans,
    laws: Laws,
    key_address: int,
    key_words: int,
    device: int,
    stream: int,
) -> None: ...
def clipped_workspace(spans: Spans, rows: int, layers: int) -> int: ...
def clipped_sums(
    spans: Spans,
    bounds: Floats,
    rows: int,
    stddev: float,
    divisor: float,
    unit: float,
    grid_std: int,
    key_address: int,
    key_words: int,
    norms_address: int,
    workspace_address: int,
    device: int,
    stream: int,
) -> None: ...
def keystream(
    key_address: int,
    key_words: int,
    stream_number: int,
    first_block: int,
    blocks: int,
    out_address: int,
    device: int,
    stream: int,
) -> None: ...
def next_key(state_address: int, out_address: int, device: int, stream: int) -> None: ...
