# SPDX-License-Identifier: Apache-2.0
"""What type checkers must refuse: every line that ends in `# wrong`, and no other. It is never run."""

import numpy as np
import torch

import ldpkernels

w = torch.zeros(3)
ldpkernels.perturb_(w, 0.0, 1.0, 1.0, mechanism="lapalce")  # wrong
ldpkernels.report(w, 0.0, 1.0, 1.0, mechanism="two_point")  # wrong
ldpkernels.perturb_(w, 0.0, 1.0, "1")  # wrong
ldpkernels.report(w, 0.0, 1.0, eps=None)  # wrong
ldpkernels.perturb_(w, "0", 1.0, 1.0)  # wrong
ldpkernels.perturb_(w, 0.0, {1: 1.0}, 1.0)  # wrong
ldpkernels.perturb_(w, 0.0, 1.0, 1.0, buffers="skip")  # wrong
ldpkernels.perturb_(w, 0.0, 1.0, 1.0, generator="unsafe")  # wrong
ldpkernels.perturb_(w, 0.0, 1.0, 1.0, generator=7)  # wrong
ldpkernels.perturb_("model", 0.0, 1.0, 1.0)  # wrong
ldpkernels.report(3, 0.0, 1.0, 1.0)  # wrong
ldpkernels.perturb_({"w": 1.0}, 0.0, 1.0, 1.0)  # wrong
ldpkernels.perturb_([["w"]], 0.0, 1.0, 1.0)  # wrong
n: np.ndarray = ldpkernels.perturb_(w, 0.0, 1.0, 1.0)  # wrong
ldpkernels.aggregate(ldpkernels.report(w, 0.0, 1.0, 1.0))  # wrong
ldpkernels.aggregate(["report"])  # wrong
ldpkernels.TwoPoint("1")  # wrong
ldpkernels.best_mechanism("1")  # wrong
ldpkernels.two_point_threshold(w, 0.0, 1.0, 1.0, output="bits")  # wrong
ldpkernels.key("seed")  # wrong

thresholds: np.ndarray = ldpkernels.two_point_threshold(w, 0.0, 1.0, 1.0)  # wrong
ldpkernels.two_point_threshold([w], 0.0, 1.0, 1.0)  # wrong

ldpkernels.ranges(w, method="max")  # wrong
ldpkernels.ranges({"w": w}, by="layer")  # wrong
ldpkernels.ranges({"w": w}, previous=1.0)  # wrong
ldpkernels.ranges("model")  # wrong
radius: float = ldpkernels.ranges({"w": w})[1]  # wrong
radii: dict[str, float] = ldpkernels.ranges([w])[1]  # wrong

ldpkernels.perturb_vector(w, 8.0)  # wrong
ldpkernels.perturb_vector(w, "8", norm=1.0)  # wrong
ldpkernels.perturb_vector(w, 8.0, norm=1.0, mechanism="k_of_d")  # wrong
sent: list[torch.Tensor] = ldpkernels.perturb_vector({"w": w}, 8.0, norm=1.0)  # wrong
arrays: dict[str, np.ndarray] = ldpkernels.perturb_vector({"w": w}, 8.0, norm=1.0)  # wrong

ldpkernels.clipped_noised_sum(w, 1.0, 1.0, noise="laplace")  # wrong
ldpkernels.clipped_noised_sum(w, 1.0, 1.0, clipping="global")  # wrong
ldpkernels.clipped_noised_sum(w, "1", 1.0)  # wrong
ldpkernels.clipped_noised_sum(w, 1.0, 1.0, batch_size=3)  # wrong
ldpkernels.clipped_noised_sum([1.0, 2.0], 1.0, 1.0)  # wrong
ldpkernels.clipped_noised_mean({"w": w}, 1.0, 1.0)["w"].tobytes()  # wrong
print(ldpkernels.clipped_noised_mean(w, 1.0, 1.0).norms)  # wrong
ldpkernels.clipped_noised_mean(w, 1.0, 1.0, return_info=True).mean()  # wrong

ldpkernels.majority_vote([[0, 1]], 2)  # wrong
ldpkernels.majority_vote(w, "2")  # wrong
ldpkernels.noisy_vote(w, 2)  # wrong
print(ldpkernels.noisy_vote(w, 2, 1.0).counts)  # wrong
counted: np.ndarray = ldpkernels.vote_counts(w, 2)  # wrong
