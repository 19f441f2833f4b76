# SPDX-License-Identifier: Apache-2.0
"""Federated learning as the papers run it, in plain Python on top of the kernels.

- `ldp_fl`: LDP-FL (Sun, Qian and Chen), Algorithm 1.
- `ldp_fed`: LDP-Fed (Truex and others), its schedules; `cldp_upload` is what its clients send.
- `han_xue`: Han and Xue, models of different types; `han_xue_world` is who takes part: `parties`, `generators`, and
  `dp_gan`. `han_xue_privacy` tells what is protected; `adult` reads their third dataset.
- `data`, `own`, `networks`, `checks`, `selection`, `training`, `weighing`, `workers`, `runs`: what the drivers share.

What only the papers' figures need (the methods that they compare with, simulated delays, bounds of errors) is in
benchmarks/papers.

An algorithm is two functions, `init` and `round_`, that depend on nothing but their arguments. They simulate all the
clients in one process; for clients that are far apart, send the bytes of their reports by any transport. All that is
random follows from a seed, so that a run can be repeated: **whoever knows the seed knows the noise**, and every epsilon
holds against the others alone. What is released is made with `ldpkernels.report`, which draws its own key.

Importing this package imports torch.
"""
