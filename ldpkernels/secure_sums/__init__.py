# SPDX-License-Identifier: Apache-2.0
"""A secure sum without a transport: a server learns the sum of its clients' integers, and nothing of any one of them.

The protocol is that of Bonawitz et al. (CCS 2017) on a complete graph: docs/secure_sums.md has the steps, what each
adversary can do, and the costs. Every step takes bytes and gives bytes, which any transport can carry:

| step | a client | the server |
|---|---|---|
| 1 | `begin(terms, number)` | `Server(terms).keys(messages)` |
| 2 | `share(state, keys)` | `.shares(messages)` |
| 3 | `mask(state, boxes, integers)` | `.masked(number, message)`, then `.present()` |
| 4 | `agree(state, present)` | `.consents(messages)` |
| 5 | `disclose(state, present, consents)` | `.total(messages)` |

It needs the package cryptography: pip install 'ldpkernels[secure]'.

>>> import numpy as np
>>> terms = Terms(round=b"first", length=4, bits=16, threshold=2, invited=3)
>>> server, numbers = Server(terms), {7: [1, 2, 3, 4], 8: [10, 20, 30, 40], 9: [0, 0, 0, 65535]}
>>> states, messages = {}, {}
>>> for client in numbers:
...     states[client], messages[client] = begin(terms, client)
>>> keys = server.keys(messages)
>>> for client in numbers:
...     states[client], messages[client] = share(states[client], keys)
>>> boxes = server.shares(messages)
>>> for client in (7, 8):  # 9 is lost here, and its masks are opened by the others
...     states[client], message = mask(states[client], boxes[client], np.array(numbers[client]))
...     _ = server.masked(client, message)
>>> present = server.present()
>>> for client in (7, 8):
...     states[client], messages[client] = agree(states[client], present)
>>> consents = server.consents({7: messages[7], 8: messages[8]})
>>> for client in (7, 8):
...     states[client], messages[client] = disclose(states[client], present, consents)
>>> server.total({7: messages[7], 8: messages[8]}).tolist()
[11, 22, 33, 44]
"""

from ldpkernels.secure_sums.client import State, agree, begin, disclose, mask, new_identity, share
from ldpkernels.secure_sums.server import RoundLost, Server
from ldpkernels.secure_sums.terms import ProtocolError, Terms

__all__ = [
    "ProtocolError",
    "RoundLost",
    "Server",
    "State",
    "Terms",
    "agree",
    "begin",
    "disclose",
    "mask",
    "new_identity",
    "share",
]
