# SPDX-License-Identifier: Apache-2.0
"""Plans, deployed: what `ldpkernels plan --app` writes, run in Flower on MNIST, beside benchmarks.budget."""
