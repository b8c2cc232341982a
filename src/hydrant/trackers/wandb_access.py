"""The W&B SDK on a leash: can its server be used, time limits where it has none, a process of its own."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from hydrant.errors import first_line


class NoAnswerError(Exception):
    """Work that did not end in its time."""


def bounded(work: Callable[[], object], timeout: float) -> Exception | None:
    """Do `work`, but wait `timeout` seconds at most; return what it raised, NoAnswerError, or None if done.

    In a thread, because the waits inside (name resolution, wandb-core) cannot be interrupted otherwise.
    """
    problems: list[Exception] = []

    def guarded() -> None:
        try:
            work()
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=guarded, daemon=True, name="hydrant-wandb")
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        return NoAnswerError(f"no answer within {timeout:g} s")
    return problems[0] if problems else None


class NoAccessError(Exception):
    """W&B cannot be used online, for what it says."""


@dataclass(frozen=True)
class Account:
    """Which server, and as whom; the key is None where the SDK exchanges a token for one."""

    base_url: str
    key: str | None

    @classmethod
    def configured(cls) -> Account:
        """As the environment, netrc and the settings say; the network is not asked.

        Raises:
            NoAccessError: there is none.
        """
        try:
            import wandb
            from wandb.sdk.lib import wbauth

            base_url = wandb.setup().settings.base_url
            auth = wbauth.authenticate_session(
                host=base_url, source="hydrant", prompt=False, update_session=False
            )
        except Exception as error:  # a key of the wrong form, settings that contradict each other
            raise NoAccessError(first_line(error)) from error
        if auth is None:
            raise NoAccessError("no API key (neither WANDB_API_KEY nor an entry of `wandb login`)")
        return cls(base_url, auth.api_key if isinstance(auth, wbauth.AuthApiKey) else None)

    def ask(self, query: str, variables: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The data of an answer, in `timeout` seconds at most.

        The SDK is not asked: if the server does not answer, its start blocks 90 s, its exit sometimes for ever.

        Raises:
            NoAccessError: there is none.
            ssl.SSLCertVerificationError: the SDK has its own root certificates, and may get one.
        """
        answers: list[dict[str, Any] | None] = []
        problem = bounded(lambda: answers.append(self._post(query, variables, timeout)), timeout)
        if isinstance(problem, NoAccessError):
            raise problem
        reason = problem.reason if isinstance(problem, urllib.error.URLError) else problem
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise reason
        if problem is not None:
            raise NoAccessError(f"{self.base_url} cannot be reached ({first_line(problem)})")
        return answers[0] or {}

    def _post(self, query: str, variables: Mapping[str, Any], timeout: float) -> dict[str, Any] | None:
        request = urllib.request.Request(
            f"{self.base_url.rstrip('/')}/graphql",
            json.dumps({"query": query, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        if self.key is not None:
            credentials = base64.b64encode(f"api:{self.key}".encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {credentials}")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            error.close()
            raise NoAccessError(f"{self.base_url} answered HTTP {error.code}") from error


def obstacle(timeout: float) -> str | None:
    """Why W&B cannot be used online, or None; asking the server takes at most `timeout` seconds."""
    try:
        account = Account.configured()
        data = account.ask("query Viewer { viewer { id } }", {}, timeout)
    except NoAccessError as error:
        return str(error)
    except ssl.SSLCertVerificationError:
        return None  # the SDK's start has a time limit
    is_known = data.get("viewer") is not None or account.key is None
    return None if is_known else f"{account.base_url} does not accept the API key"


@contextlib.contextmanager
def own_service() -> Generator[None]:
    """Neither use a parent process's wandb-core, which may be dead, nor pass ours on to child processes.

    And keep it quiet, which it reads when it starts: else it reports to the vendor, 10 s at exit where packets are
    swallowed, and asks for the account's name, with no time limit.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_QUIET", "true")
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.pop("WANDB_SERVICE", None)
    try:
        yield
    finally:
        os.environ.pop("WANDB_SERVICE", None)


def impatient() -> None:
    """Let questions to a server that fails end within half a minute, not hours. Read when the SDK starts."""
    os.environ.setdefault("WANDB_X_GRAPHQL_RETRY_MAX", "5")
    os.environ.setdefault("WANDB_X_GRAPHQL_RETRY_WAIT_MAX_SECONDS", "4")


def teardown() -> None:
    """End wandb-core, so that the next run starts another. If it had died, the SDK would end us too."""
    import wandb

    with contextlib.suppress(Exception, SystemExit):
        wandb.teardown()
