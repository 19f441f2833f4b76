# SPDX-License-Identifier: Apache-2.0
"""What type checkers must refuse: every line that ends in `# type: ignore[...]`, and no other. It is never run.

mypy, as `make lint` asks it, says which of these comments silence nothing. basedpyright reads none of them.
"""

import numpy as np
import torch

import ldpkernels

w = torch.zeros(3)
ldpkernels.perturb_(w, 0.0, 1.0, 1.0, mechanism="lapalce")  # type: ignore[arg-type]
ldpkernels.report(w, 0.0, 1.0, 1.0, mechanism="two_point")  # type: ignore[arg-type]
ldpkernels.perturb_(w, 0.0, 1.0, "1")  # type: ignore[arg-type]
ldpkernels.report(w, 0.0, 1.0, eps=None)  # type: ignore[arg-type]
ldpkernels.perturb_(w, "0", 1.0, 1.0)  # type: ignore[arg-type]
ldpkernels.perturb_(w, 0.0, {1: 1.0}, 1.0)  # type: ignore[dict-item]
ldpkernels.perturb_(w, 0.0, 1.0, 1.0, buffers="skip")  # type: ignore[arg-type]
ldpkernels.perturb_(w, 0.0, 1.0, 1.0, generator="unsafe")  # type: ignore[arg-type]
ldpkernels.perturb_(w, 0.0, 1.0, 1.0, generator=7)  # type: ignore[arg-type]
ldpkernels.perturb_("model", 0.0, 1.0, 1.0)  # type: ignore[type-var]
ldpkernels.report(3, 0.0, 1.0, 1.0)  # type: ignore[arg-type]
ldpkernels.perturb_({"w": 1.0}, 0.0, 1.0, 1.0)  # type: ignore[type-var]
ldpkernels.perturb_([["w"]], 0.0, 1.0, 1.0)  # type: ignore[type-var]
n: np.ndarray = ldpkernels.perturb_(w, 0.0, 1.0, 1.0)  # type: ignore[arg-type]
ldpkernels.aggregate(ldpkernels.report(w, 0.0, 1.0, 1.0))  # type: ignore[call-overload]
ldpkernels.aggregate(["report"])  # type: ignore[list-item]
ldpkernels.TwoPoint("1")  # type: ignore[arg-type]
ldpkernels.best_mechanism("1")  # type: ignore[arg-type]
ldpkernels.two_point_threshold(w, 0.0, 1.0, 1.0, output="bits")  # type: ignore[call-overload]
ldpkernels.key("seed")  # type: ignore[arg-type]

thresholds: np.ndarray = ldpkernels.two_point_threshold(w, 0.0, 1.0, 1.0)  # type: ignore[assignment]
ldpkernels.two_point_threshold([w], 0.0, 1.0, 1.0)  # type: ignore[call-overload]

ldpkernels.ranges(w, method="max")  # type: ignore[call-overload]
ldpkernels.ranges({"w": w}, by="layer")  # type: ignore[call-overload]
ldpkernels.ranges({"w": w}, previous=1.0)  # type: ignore[call-overload]
ldpkernels.ranges("model")  # type: ignore[arg-type]
radius: float = ldpkernels.ranges({"w": w})[1]  # type: ignore[assignment]
radii: dict[str, float] = ldpkernels.ranges([w])[1]  # type: ignore[assignment]

ldpkernels.perturb_vector(w, 8.0)  # type: ignore[call-overload]
ldpkernels.perturb_vector(w, "8", norm=1.0)  # type: ignore[call-overload]
ldpkernels.perturb_vector(w, 8.0, norm=1.0, mechanism="k_of_d")  # type: ignore[call-overload]
sent: list[torch.Tensor] = ldpkernels.perturb_vector({"w": w}, 8.0, norm=1.0)  # type: ignore[assignment]
arrays: dict[str, np.ndarray] = ldpkernels.perturb_vector({"w": w}, 8.0, norm=1.0)  # type: ignore[dict-item]

ldpkernels.clipped_noised_sum(w, 1.0, 1.0, noise="laplace")  # type: ignore[call-overload]
ldpkernels.clipped_noised_sum(w, 1.0, 1.0, clipping="global")  # type: ignore[call-overload]
ldpkernels.clipped_noised_sum(w, "1", 1.0)  # type: ignore[arg-type]
ldpkernels.clipped_noised_sum(w, 1.0, 1.0, batch_size=3)  # type: ignore[call-overload]
ldpkernels.clipped_noised_sum([1.0, 2.0], 1.0, 1.0)  # type: ignore[type-var]
ldpkernels.clipped_noised_mean({"w": w}, 1.0, 1.0)["w"].tobytes()  # type: ignore[attr-defined]
print(ldpkernels.clipped_noised_mean(w, 1.0, 1.0).norms)  # type: ignore[attr-defined]
ldpkernels.clipped_noised_mean(w, 1.0, 1.0, return_info=True).mean()  # type: ignore[attr-defined]

ldpkernels.majority_vote([[0, 1]], 2)  # type: ignore[call-overload]
ldpkernels.majority_vote(w, "2")  # type: ignore[call-overload]
ldpkernels.noisy_vote(w, 2)  # type: ignore[call-overload]
print(ldpkernels.noisy_vote(w, 2, 1.0).counts)  # type: ignore[attr-defined]
counted: np.ndarray = ldpkernels.vote_counts(w, 2)  # type: ignore[assignment]
