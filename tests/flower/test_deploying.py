# SPDX-License-Identifier: Apache-2.0
"""docs/deploying.md and the README of an app: their commands run as they stand, with fewer clients and another host."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import ldpkernels
from ldpkernels.flower.node import settings_of
from tests.flower.deployment import SECONDS, Deployment, free_ports

PAGE = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text()
NODES = 3
FEWER = {  # what the test has for what the page has
    "--epsilon 8": "--epsilon 300",
    "--rounds 20": "--rounds 1",
    "--clients 99": f"--clients {NODES - 1}",
    "--threshold 90": f"--threshold {NODES}",
    "--invited 100": f"--invited {NODES}",
    "--weights 21840": "--weights 313",
    "num-supernodes=100": f"num-supernodes={NODES}",
    "num-partitions=100": f"num-partitions={NODES}",
    "0.0.0.0": "127.0.0.1",
}
COMMANDS = re.findall(r"^\$ (.*)$", PAGE, re.M)
TOML = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.M | re.S)
REPORTS = re.compile(r"^round 1: reports=(\d+) skipped=0 failures=0 silent=0", re.M)


class Told(Deployment):
    """The page's own processes and commands; HOST is this machine's name for itself."""

    port = 0

    def certified(self):
        subprocess.run(self.words("openssl"), cwd=self.folder, check=True, capture_output=True)
        return self.folder / "certificate.pem", self.folder / "key.pem"

    def superlink(self):
        return [*self.words("flower-superlink"), "--port", str(self.port)]

    def supernode(self, i):
        return [word.replace("partition-id=0", f"partition-id={i}") for word in self.words("flower-supernode")]

    def words(self, begin):
        """The page's one command that begins so, as it is here."""
        (line,) = (line for line in COMMANDS if line.startswith(begin))
        return shlex.split(self.here(line))

    def here(self, text):
        """Text of the page for this machine and so few clients."""
        places = {"/path/to": self.folder, "/var/lib/ldp-app": self.folder / "state"}
        for wanted, ours in {**FEWER, "HOST:8000": f"localhost:{self.port}", "HOST": "localhost", **places}.items():
            text = text.replace(wanted, str(ours))
        return text

    def done(self, *words):
        """What a command prints, as the one who starts runs has it."""
        home = {**self.environment, "FLWR_HOME": str(self.folder / "flwr")}
        found = subprocess.run(
            words, cwd=self.folder, env=home, capture_output=True, text=True, timeout=2 * SECONDS, check=False
        )
        return found.stdout + found.stderr

    def plan(self):
        """Write the page's app; its README."""
        words = self.words("ldpkernels plan")
        output = self.done(sys.executable, "-m", *words)
        assert (self.folder / "app" / "README.md").exists(), output
        return (self.folder / "app" / "README.md").read_text()


class Alone(Told):
    """No processes but those that a command starts, and a port of its own for them."""

    def __enter__(self):
        (port,) = free_ports(1)
        self.environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"] = str(port)
        return self


@pytest.mark.flower
def test_from_the_plan_to_a_superlink(tmp_path):
    """The page's own certificate, server, clients and run, which the app's own page has alike."""
    with Told(tmp_path, nodes=NODES, LDP_LEDGERS=str(tmp_path / "ledgers")) as flower:
        readme = re.sub(r" \\\n +", " ", flower.plan())
        for command in ("flower-superlink", "flower-supernode"):
            (line,) = re.findall(rf"^    ({command} .*)$", readme, re.M)
            assert shlex.split(flower.here(line)) == flower.words(command)
        (block,) = (text for text in TOML if "[superlink" in text)
        assert block in re.sub("^    ", "", readme, flags=re.M)
        (tmp_path / "flwr" / "config.toml").write_text(flower.here(block))
        output = flower.done(*flower.words("flwr run app mine"))
        assert REPORTS.findall(output) == [str(NODES)], output + flower.logs()
        assert re.search(r"accuracy after 1 rounds: [\d.]+%", output)
    assert sorted(path.name for path in (tmp_path / "ledgers").iterdir()) == [f"{i}.ledger" for i in range(NODES)]


@pytest.mark.flower
def test_the_simulation_of_the_page(tmp_path):
    """By the command alone: Flower starts what it needs."""
    with Alone(tmp_path, LDP_LEDGERS=str(tmp_path / "ledgers")) as flower:
        flower.plan()
        late = "Failed to start local SuperLink within"  # 15 seconds, of which a busy machine needs more
        outputs = (flower.done(*flower.words("flwr run app --stream")) for _ in range(20))
        output = next((one for one in outputs if late not in one), late)
        assert REPORTS.findall(output) == [str(NODES)], output


def test_the_file_of_the_page_is_the_plans_law(tmp_path):
    (block,) = (text for text in TOML if "[law]" in text)
    (tmp_path / "site.toml").write_text(block)
    found = settings_of({"partition-id": 0, "ldp": str(tmp_path / "site.toml")}, {}).settings
    said = re.search(r"ldpkernels\.plan\(\n\.\.\. (.*?)\n\.\.\. \)", PAGE, re.S)[1]
    best = eval(f"ldpkernels.plan({said})", {"ldpkernels": ldpkernels})[0]
    assert found["threshold"] == best.setting.opened == 90
    assert found["law"] == best.law  # or a sum refuses who has it: "it announced other terms"
    assert best.epsilon <= found["budget"] == 8.0


def test_what_the_page_says_is_seen_is_what_the_package_says():
    """The words of the table are those of messages."""
    sources = "".join(path.read_text() for path in Path(ldpkernels.__file__).parent.rglob("*.py"))
    table = PAGE.partition("| you see |")[2].partition("\n\n")[0]
    words = [word for word in re.findall(r'"([^"]*)"', table) if not word.startswith("the threshold")]
    assert len(words) == 4
    for word in words:
        assert word in sources, word
