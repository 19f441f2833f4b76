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
