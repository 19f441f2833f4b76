# SPDX-License-Identifier: Apache-2.0
"""`ldpkernels flower-node` at work: a SuperNode's Runtime API, as `flower-superexec` and `flwr-clientapp` speak it.

A process takes tasks, and starts one for each with the task's token, so that a run that is stopped ends one task alone.
No app is loaded here: where Flower's modules are not what they were, this raises, and nothing is answered.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from flwr.common.constant import SubStatus
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.version import package_version

from ldpkernels.flower.hosting import Bundle, House

try:
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.auth import load_superexec_auth_secret
    from flwr.supercore.constant import TaskType
    from flwr.supercore.heartbeat import make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.retry import RetryInvoker, make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.tls import validate_and_resolve_root_certificates
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output
except ImportError as error:
    raise ImportError(
        f"flower-node cannot talk to SuperNodes of Flower {package_version} ({error}): pip install 'flwr>=1.41,<2'"
    ) from error


class _Known:
    """A SuperNode that refuses a secret is told from a run that was stopped, which Flower takes it for."""

    def intercept(self, context: object, call_next: Callable[[object], httpx.Response]) -> httpx.Response:
        response = call_next(context)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            raise PermissionError(
                "the SuperNode refuses: give the --superexec-auth-secret-file that it was started with"
            )
        return response


logger = logging.getLogger("ldpkernels.flower")

_PAUSE = 1.0  # seconds between two looks for a task


def run(file: Path, flower: argparse.Namespace, *, check: bool) -> int:
    """Answer tasks until this process is stopped, or one; their number, where this ends by itself."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was started ends too
    secret, token_file = flower.superexec_auth_secret_file, flower.token_file
    house = House(file.absolute(), [os.path.abspath(path) for path in (secret, token_file) if path not in (None, "-")])
    if token_file is None or check:
        house.check()
        if check:
            return 0
    try:
        if token_file is None:
            return _tasks(house, flower)
        token = (sys.stdin.read() if token_file == "-" else Path(token_file).read_text(encoding="ascii")).strip()
        return _answered(house, flower, token)
    except httpx.HTTPError as error:
        raise RuntimeError(
            f"the SuperNode at {flower.runtime_api_address} gives an answer that flower-node does not know ({error}): "
            f"is it a flower-supernode --isolation process, of Flower {package_version}?"
        ) from error


def _tasks(house: House, flower: argparse.Namespace) -> int:
    """Take one task after another, each in a process of its own. This never ends."""
    method = "/flwr.proto.Runtime/AcquireTask"
    known = load_superexec_auth_secret(flower.superexec_auth_secret_file)
    signed = [SuperExecAuthHttpInterceptor(master_secret=known, protected_methods=[method])] if known else []
    client, _ = _client(flower, _Known(), RuntimeVersionHttpInterceptor(component_name="SuperExec"), *signed)
    given = ["--runtime-api-address", flower.runtime_api_address, *["--insecure"][: flower.insecure]]
    given += ["--root-certificates", flower.root_certificates] if flower.root_certificates else []
    given += ["--superexec-auth-secret-file", flower.superexec_auth_secret_file] if known else []  # which it hides
    command = [sys.executable, "-m", "ldpkernels", "flower-node", str(house.file), "--", *given, "--token-file", "-"]
    while True:
        found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
        if found.HasField("task") and found.token:
            done = subprocess.run(command, input=found.token.encode(), check=False)
            logger.info("task %d ended with status %d", found.task.task_id, done.returncode)
        time.sleep(_PAUSE)


def _answered(house: House, flower: argparse.Namespace, token: str) -> int:
    """Answer the task that a token is for."""
    version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
    client, retries = _client(flower, version, RuntimeTokenHttpInterceptor(token))
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    context, status = None, SubStatus.FAILED
    try:
        message, context, run_, fab = pull_task_input(client)
        reply = house.answered(message, context, Bundle(run_.fab_id, run_.fab_version, fab.hash_str, fab.content))
        push_message(client, reply, context)
        status = SubStatus.COMPLETED
    finally:
        retries.max_tries = 1
        push_task_output(client, context, status, "")  # whose details stay empty
        heartbeat.stop()
        client.close()
    return 1


def _client(flower: argparse.Namespace, *interceptors: object) -> tuple[RuntimeHttpClient, RetryInvoker]:
    retries = make_simple_http_retry_invoker()
    certificates = validate_and_resolve_root_certificates(flower.root_certificates, flower.insecure)
    made = RuntimeHttpClient.from_server_address(
        flower.runtime_api_address, flower.insecure, certificates, interceptors, retry_invoker=retries
    )
    return made, retries
