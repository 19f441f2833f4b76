# SPDX-License-Identifier: Apache-2.0
# The laws are computed in decimal arithmetic, whose defaults belong to the program around us.
import subprocess
import sys

import pytest

CODE = """
import decimal, hashlib
{settings}
import numpy as np
import ldpkernels
from ldpkernels import accounting, updates
from ldpkernels.accounting.records import rounded_up

key, x = ldpkernels.key(5), np.linspace(-1.3, 1.3, 257).astype(np.float32)
found = [ldpkernels.perturb_(x.copy(), 0.1, 0.9, 0.731, mechanism=m, generator=key)
         for m in ("two-point", "piecewise", "hybrid", "sign")]
found += [ldpkernels.cldp_(x.copy(), 0.37, 1.0, 3, mechanism=m, generator=key) for m in ("exponential", "laplace")]
found.append(ldpkernels.perturb_vector(x, norm=1.0, mechanism="gaussian", sigma=1.3, generator=key))
found.append(ldpkernels.clipped_noised_sum(x[:256].reshape(2, 128), 1.0, 0.7, noise="discrete", generator=key))
tables = [ldpkernels.laws.noise_table.gaussian_table(7.3), ldpkernels.laws.noise_table.skellam_table(9.1)]
found += [one for t in tables for one in (t.high, t.low)]
found.append(np.array([t.distance for t in tables] + [ldpkernels.OrdinalCLDP(0.3, 1.0, 2).worst_case_eps]))
found.append(np.array([ldpkernels.ProjectedCode(8.0, dimension=100, bits=8).threshold], np.uint64))
bits = b"".join(one.tobytes() for one in found)
print(hashlib.sha256(bits).hexdigest(), rounded_up(1.2345e-7), rounded_up(0.1234567))
"""
SMALL = "c.prec, c.Emax, c.Emin, c.rounding = 3, 20, -20, decimal.ROUND_UP"
SETTINGS = {
    "the program's defaults": f"c = decimal.DefaultContext; {SMALL}; decimal.setcontext(c.copy())",
    "the thread's context": f"c = decimal.getcontext(); {SMALL}; c.traps[decimal.Inexact] = True",
}


def run(settings):
    done = subprocess.run([sys.executable, "-c", CODE.format(settings=settings)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def undisturbed():
    return run("")


@pytest.mark.parametrize("name", SETTINGS)
def test_the_laws_do_not_depend_on_the_callers_decimal_context(undisturbed, name):
    assert run(SETTINGS[name]) == undisturbed
    assert undisturbed.split()[1:] == ["1.24e-7", "0.123457"], "a figure is rounded up"
