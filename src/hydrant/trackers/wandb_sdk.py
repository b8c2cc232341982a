"""Safe use of the W&B SDK: check access, limit its time, and start it while a run is prepared."""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import os
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrant.errors import first_line
from hydrant.files.read_file import check_type
from hydrant.imports.without_gc import paused_gc
from hydrant.safety.trust import working_project
from hydrant.trackers.sender import call_with_timeout
from hydrant.trackers.wandb_process import (
    SERVICE,
    changed_process,
    set_up,
    stop_core,
    without_field_descriptions,
)

_HISTORY_TAIL = """query RunResumeStatus($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) { bucket(name: $name, missingOk: true) { historyTail } }
}"""
"""The query with which the SDK asks for a run that it continues."""

NO_KEY = "no API key (neither WANDB_API_KEY nor an entry of `wandb login`)"


class NoAccessError(Exception):
    """W&B cannot be used online; the message gives the reason."""


@dataclass(frozen=True)
class Account:
    """The server and the API key. The key is None if the SDK gets a token from an identity file."""

    base_url: str
    key: str | None

    @classmethod
    def configured(cls) -> Account:
        """Read the account from the environment, netrc and the W&B settings. Does not use the network.

        Raises:
            NoAccessError: no account is configured.
        """
        try:
            from wandb.sdk.lib import wbauth

            settings = set_up().settings
            _check_settings_file(Path(settings.settings_workspace))
            base_url = settings.base_url
            auth = wbauth.authenticate_session(
                host=base_url, source="hydrant", prompt=False, update_session=False
            )
        except Exception as error:  # a malformed key, contradictory settings
            raise NoAccessError(first_line(error)) from error
        if auth is None:
            raise NoAccessError(NO_KEY)
        return cls(base_url, auth.api_key if isinstance(auth, wbauth.AuthApiKey) else None)

    def query(self, query: str, variables: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Return the data of a GraphQL response within `timeout` seconds.

        Does not use the SDK: without an answer, its start blocks for 90 s and its exit sometimes forever.

        Raises:
            NoAccessError: the server does not answer the query.
            ssl.SSLCertVerificationError: the certificate is not trusted here. The SDK may still trust it,
                because it has its own root certificates.
        """
        answers: list[dict[str, Any] | None] = []
        error = call_with_timeout(lambda: answers.append(self._post(query, variables, timeout)), timeout)
        if isinstance(error, NoAccessError):
            raise error
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise reason
        if error is not None:
            raise NoAccessError(f"{self.base_url} cannot be reached ({first_line(error)})")
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


def last_sent_row(path: str, timeout: float) -> dict[str, Any]:
    """Return the last row of history that the server has of a run, `entity/project/id`; with time 0 if it has none.

    Raises:
        NoAccessError: the server does not say.
    """
    entity, project, name = path.split("/")
    try:
        data = Account.configured().query(
            _HISTORY_TAIL, {"entity": entity, "project": project, "name": name}, timeout
        )
        tail = json.loads(data["model"]["bucket"]["historyTail"] or "[]")
        row = json.loads(tail[-1]) if tail else {"time": 0.0}
        check_type(row, dict[str, Any], "historyTail")
        check_type(row.get("time"), float | None, "time")
    except ssl.SSLCertVerificationError as error:
        raise NoAccessError(first_line(error)) from error
    except (KeyError, TypeError, ValueError) as error:
        raise NoAccessError(f"the server does not tell the last row of {path}") from error
    return row


def _check_settings_file(file: Path) -> None:
    """Refuse the settings of the working folder, which the SDK has read, unless the user trusts this folder.

    They choose the server, which receives the API key, and the account.

    Raises:
        NoAccessError: they are there.
    """
    if file.exists() and "WANDB_DIR" not in os.environ and not working_project().is_trusted:
        message = f"{file} chooses a server or an account, and this folder is not trusted"
        raise NoAccessError(f"{message}; remove it, or if it is your project, run: hydrant trust")


def access_problem(timeout: float = 10.0) -> str | None:
    """Return why W&B cannot be used online, or None. Waits at most `timeout` seconds for the server."""
    try:
        account = Account.configured()
        data = account.query("query Viewer { viewer { id } }", {}, timeout)
    except NoAccessError as error:
        return str(error)
    except ssl.SSLCertVerificationError:
        return None  # the SDK may trust the certificate, and its start has a time limit
    is_known = data.get("viewer") is not None or account.key is None
    return None if is_known else f"{account.base_url} does not accept the API key"


class SdkSession:
    """The open W&B runs of this process. They share one wandb-core, so the result of one check of the server holds for
    all."""

    def __init__(self) -> None:
        self.num_open = 0
        self._warming: threading.Thread | None = None
        self._changes = contextlib.ExitStack()
        self._problems: list[str | None] = []

    @property
    def is_shared(self) -> bool:
        return self.num_open > 1

    @contextlib.contextmanager
    def warm(self, *, probe_timeout: float | None) -> Generator[None]:
        """Let a thread import the SDK, start wandb-core and ask the server while the block prepares a run.

        If the block opens no run, wandb-core ends with it.

        Args:
            probe_timeout: for the server; None does not ask it.
        """
        if self.num_open or self._warming is not None:
            yield
            return
        self._changes.enter_context(changed_process(fail_fast=False))

        def start() -> None:
            with contextlib.suppress(Exception):  # the run meets it again, and reports it
                with without_field_descriptions(), paused_gc():
                    importlib.import_module("wandb")
                set_up()
                if probe_timeout is not None:
                    self.access_problem(probe_timeout)

        self._warming = threading.Thread(target=start, daemon=True, name="hydrant-wandb")
        self._warming.start()
        try:
            yield
        finally:
            self._join()
            if not self.num_open:
                stop_core()
                self._close()

    def _join(self) -> None:
        if self._warming is not None:
            self._warming.join()
            self._warming = None
            os.environ.pop(SERVICE, None)

    def access_problem(self, timeout: float) -> str | None:
        """Return why W&B cannot be used online, or None. Only the first of several runs asks the server."""
        if not self._problems:
            self._problems.append(access_problem(timeout))
        return self._problems[0]

    def begin(self, *, fail_fast: bool) -> None:
        is_warm = self._warming is not None
        self._join()
        if not (self.num_open or is_warm):
            self._changes.enter_context(changed_process(fail_fast=fail_fast))
        self.num_open += 1

    def end(self) -> None:
        self.num_open -= 1
        if not self.num_open:
            self._close()

    def _close(self) -> None:
        self._problems.clear()
        self._changes.close()


_session = SdkSession()


def warm_sdk(*, probe_timeout: float | None) -> contextlib.AbstractContextManager[None]:
    """Start the SDK while the block prepares a run: see `SdkSession.warm`."""
    return _session.warm(probe_timeout=probe_timeout)


@contextlib.contextmanager
def sdk_session(*, fail_fast: bool = False) -> Generator[SdkSession]:
    """Let the SDK start a quiet wandb-core of this process, and leave the process unchanged afterwards.

    Sessions may overlap and end in any order: the first one changes the process, the last one undoes that.

    Args:
        fail_fast: let a query to a failing server end within half a minute instead of hours.
    """
    _session.begin(fail_fast=fail_fast)
    try:
        yield _session
    finally:
        _session.end()
