# SPDX-License-Identifier: Apache-2.0
"""LDP-FL's tables and figures, rerun: `python -m benchmarks.papers.ldp_fl --data DIR`.

Every cell is one run of `ldpkernels.federated.ldp_fl` with one seed (`ldp_fl_runs`); the page has means and deviations
(`ldp_fl_page`). Finished cells are kept in the JSON file and a cell that was killed goes on from its last round; --only
REGEX runs some of them, --dry writes the page from what is there.
"""

from __future__ import annotations

from benchmarks.papers import ldp_fl_others, ldp_fl_runs
from benchmarks.papers.common import Cells, Job, parser_of
from benchmarks.papers.ldp_fl_page import write


def jobs(root: str, workers: int | None, seed: int = 0) -> list[Job]:
    """LDP-FL's runs, and those of the methods that its paper compares it with (`ldp_fl_others`)."""
    return [*ldp_fl_runs.jobs(root, workers, seed), *ldp_fl_others.jobs(root, workers, seed)]


def main() -> None:
    args = parser_of(__doc__ or "", "ldp-fl").parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cells = Cells(args.out / f"{args.name}.json", args.only, args.dry)
    cells.fill(jobs(args.data, args.workers, args.seed), lambda: write(cells, args.out, args.name))


if __name__ == "__main__":
    main()
