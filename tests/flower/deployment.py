# SPDX-License-Identifier: Apache-2.0
"""A SuperLink and SuperNodes as processes on this machine, over TLS with a certificate made for it."""

import contextlib
import datetime
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SECONDS = 600  # that an app may take on a machine that is busy


def certificate(folder):
    """A key and a certificate of 127.0.0.1 that signs itself: (certificate, key)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    certificate_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, *secret))
    return certificate_file, key_file


def free_ports(count):
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Deployment:
    """Processes of Flower's own commands, each with a log, until the `with` statement ends."""

    def __init__(self, folder, nodes=0, config="", owner=None, **environment):
        """Without nodes, the SuperLink simulates them on Ray. `config` is more of each node's configuration.

        With an owner's file, the apps of all nodes run by `ldpkernels flower-node`.
        """
        self.folder, self.nodes, self.config, self.owner = Path(folder), nodes, config, owner
        binaries = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "RAY_worker_niceness": "0",  # as in conftest.py
            **environment,
        }
        self.processes = []

    def __enter__(self):
        self.certificate, self.key = self.certified()
        self.signed = []
        if self.owner:
            (self.owner.parent / "secret").write_text(os.urandom(32).hex())
            self.signed = ["--superexec-auth-secret-file", self.owner.parent / "secret"]
        self.port, *others = free_ports(1 + self.nodes)
        try:
            self._start("superlink", *self.superlink())
            self._await(self.port)
            for i, own in enumerate(others):
                self._start(f"supernode{i}", *self.supernode(i), "--port", own)
                if self.owner:
                    self._start(
                        f"node{i}", sys.executable, "-m", "ldpkernels", "flower-node", self.owner, "--",
                        "--runtime-api-address", f"127.0.0.1:{own}", "--root-certificates", self.certificate,
                        *self.signed,
                    )  # fmt: skip
        except BaseException:
            self.__exit__()
            raise
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.certificate}"\n'
        )
        return self

    def certified(self):
        """The files of a certificate and its key."""
        return certificate(self.folder)

    def superlink(self):
        """Its command."""
        return [
            "flower-superlink", "--host", "127.0.0.1", "--port", self.port,
            "--ssl-certfile", self.certificate, "--ssl-keyfile", self.key, "--ssl-ca-certfile", self.certificate,
            "--disable-runtime-dependency-installation", *([] if self.nodes else ["--simulation"]),
        ]  # fmt: skip

    def supernode(self, i):
        """The command of one of them."""
        return [
            "flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--root-certificates", self.certificate,
            "--node-config", f"partition-id={i} num-partitions={self.nodes} {self.config}",
            "--ssl-certfile", self.certificate, "--ssl-keyfile", self.key, "--ssl-ca-certfile", self.certificate,
            *(["--isolation", "process", *self.signed] if self.owner else []),
        ]  # fmt: skip

    def _start(self, name, *command):
        log = (self.folder / f"{name}.log").open("wb")
        environment = {**self.environment, "FLWR_HOME": str(self.folder / name)}
        self.processes.append(
            subprocess.Popen(
                [str(word) for word in command],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
            )
        )
        log.close()

    def _await(self, port):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.2)
        raise RuntimeError(f"no SuperLink:\n{self.logs()}")

    def run(self, app, config, *options):
        """`flwr run` of an app's folder; what it prints until it is done."""
        copy = self.folder / "apps" / Path(app).name
        shutil.copytree(app, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        done = subprocess.run(
            ["flwr", "run", str(copy), "here", "--stream", "--run-config", config, *options],
            env={**self.environment, "FLWR_HOME": str(self.folder / "flwr")},
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    def logs(self):
        """The ends of all logs, for an error."""
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in self.folder.glob("*.log"))

    def __exit__(self, *exception):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        for pid in self._left():  # what they started detaches itself
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def _left(self):
        """Processes whose home is one of ours."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if f"FLWR_HOME={self.folder}{os.sep}".encode() in (entry / "environ").read_bytes():
                        yield int(entry.name)
