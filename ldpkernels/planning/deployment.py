# SPDX-License-Identifier: Apache-2.0
"""How a law is run: the lines of Flower's client and server, or of torch.distributed's ranks, that keep a total."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ldpkernels.accounting import local_epsilon
from ldpkernels.accounting.events import Mechanism
from ldpkernels.laws.central_gaussian import CentralGaussian
from ldpkernels.laws.distributed import Shares
from ldpkernels.laws.projected_code import ProjectedCode
from ldpkernels.laws.registry import KINDS
from ldpkernels.planning.setting import Setting

LEDGERS = "/var/lib/ldp/"  # one place, from whatever folder a process starts: elsewhere is another budget
LEDGER = LEDGERS + "{partition-id}.ledger"  # a file of each client: Flower fills its number in
NO_SHUFFLER = "No shuffler comes with ldpkernels or Flower: the party that mixes the reports is yours to bring."
CHARGED = "Without it the total is the one below, which is what a ledger charges."
SUMS_SERVE = "A secure sum of the reports serves in its stead: it shows no more than a shuffler leaves."
NO_ROSTER = (
    "These lines hold off whoever sees the sums of a server that follows the protocol. Against one that does not, give"
    " LdpMod the clients' signing keys: roster= and identity= (docs/secure_sums.md)."
)
MOST_SUMMED = 2**16  # clients, of a complete graph
TOO_MANY = "No secure sum here has so many clients: docs/secure_sums.md says what others have."
BY_HAND = "No framework here runs this law: run the call, and the mean that goes with it, by yourself."


def written(law: object, **names: str) -> str:
    """A law as code; `names` are written in the place of its values.

    >>> import ldpkernels
    >>> written(ldpkernels.PrivUnitG(8.0, 100), norm="norm")
    'ldpkernels.PrivUnitG(eps=8.0, dimension=100, norm=norm)'
    """
    values = {one.name: repr(getattr(law, one.name)) for one in fields(law)} | names  # type: ignore[arg-type]
    return f"ldpkernels.{type(law).__name__}({', '.join(f'{name}={value}' for name, value in values.items())})"


@dataclass(frozen=True)
class Deployment:
    """The lines that run a law. If a framework cannot run it, its part is empty and the notes say why.

    Attributes:
        law: The law as code, the same for every client and the server.
        client: The arguments of Flower's `LdpMod`.
        server: The arguments of Flower's `LdpFedAvg`.
        ranks: A call for the ranks of torch.distributed.
        notes: What to know first.
    """

    law: str
    client: str = ""
    server: str = ""
    ranks: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"# {note}" for note in self.notes]
        if self.client or self.ranks:
            lines += ["import ldpkernels"]
        if "law" in (self.client + self.ranks):
            lines += [f"law = {self.law}"]
        if self.client:
            lines += [
                "from ldpkernels.flower import LdpFedAvg, LdpMod",
                f"mod = LdpMod({self.client})  # of each client: ClientApp(mods=[mod])",
                f"strategy = LdpFedAvg({self.server})  # of the ServerApp",
            ]
        if self.ranks:
            lines += ["import ldpkernels.distributed", f"mean = {self.ranks}  # on every rank"]
        return "\n".join(lines)


def deployment(setting: Setting, law: Mechanism | None, adaptive: bool = False) -> Deployment:
    """The lines for a law that was calibrated for this setting."""
    if law is None:
        return Deployment("", notes=(BY_HAND,))
    code, total = written(law), f"budget={setting.epsilon!r}, delta={setting.kept_delta!r}"
    own, follows = f', ledger="{LEDGER}", ', ", adaptive=True" * adaptive
    if isinstance(law, CentralGaussian):
        kept = f'central=law{follows}, ledger="{LEDGERS}server.ledger", {total}'
        return Deployment(code, f"central=law{follows}", kept)
    least = f", at_least={setting.sure}" if setting.enforced or setting.drawn else ""
    threshold = f", threshold={setting.opened}"
    if setting.trust == "secure-aggregation" and setting.most > MOST_SUMMED:
        return Deployment(code, notes=(TOO_MANY,))
    if isinstance(law, Shares):
        ranks = "" if adaptive else "ldpkernels.distributed.mean(update, law=law, secure=True)"
        both = f"law=law{follows}{threshold}"
        return Deployment(code, f"{both}{own}{total}", both, ranks, (NO_ROSTER,))
    each = isinstance(law, KINDS)
    radius = f", R={setting.box!r}" if each else ""
    local = local_epsilon(law, d=setting.weights if each else 1, rounds=setting.rounds, delta=setting.kept_delta)
    if local.epsilon <= setting.epsilon:  # nobody has to hide it
        ranks = ""
        if isinstance(law, KINDS):
            ranks = f"ldpkernels.distributed.mean(update, C=0.0{radius}, eps={law.eps!r}, mechanism={law.name!r})"
        return Deployment(code, f"law=law{own}{total}", f"law=law{radius}{least}", ranks)
    if each:
        if setting.most > MOST_SUMMED:
            return Deployment(code, notes=(NO_SHUFFLER, TOO_MANY))
        notes = ((NO_SHUFFLER, SUMS_SERVE) if setting.trust == "shuffled" else ()) + (NO_ROSTER,)
        return Deployment(code, f"law=law{threshold}{own}{total}", f"law=law{threshold}{radius}", notes=notes)
    if isinstance(law, ProjectedCode):  # a server of Flower reads codes by the numbers of their nodes
        return Deployment(code, notes=(NO_SHUFFLER, BY_HAND))
    alone = f"budget={local.epsilon!r}, delta={setting.kept_delta!r}"
    return Deployment(code, f"law=law{own}{alone}", f"law=law{least}", notes=(NO_SHUFFLER, CHARGED))
