"""Safe use of the W&B SDK: check access, limit its time, undo what it changes in this process, use names it accepts.

Each private part of the SDK says the version and the month in which it was seen.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import json
import os
import ssl
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from hydrant.errors import ConfigError, first_line, log
from hydrant.imports import paused_gc
from hydrant.records import check_type
from hydrant.safety.trust import working_project
from hydrant.trackers import RunIdentity, call_with_timeout

SERVICE = "WANDB_SERVICE"
"""The variable with the address of wandb-core, the SDK's background process. Child processes inherit it."""

_QUIET = {"WANDB_ERROR_REPORTING": "false", "WANDB_QUIET": "true", "WANDB_SILENT": "true"}
_FAIL_FAST = {"WANDB_X_GRAPHQL_RETRY_MAX": "5", "WANDB_X_GRAPHQL_RETRY_WAIT_MAX_SECONDS": "4"}


@contextlib.contextmanager
def changed_process(*, fail_fast: bool) -> Generator[None]:
    """Set variables for wandb-core. Those that the user has set keep their values.

    Without WANDB_ERROR_REPORTING=false, wandb-core reports to its vendor, which takes 10 s at exit where a firewall
    drops the packets. Without WANDB_SILENT, the SDK fetches the account's name without a time limit. A wandb-core of a
    parent process is not used, because it may be dead.
    """
    defaults = _QUIET | (_FAIL_FAST if fail_fast else {})
    service = os.environ.pop(SERVICE, None)
    exit_function, excepthook = sys.exit, sys.excepthook
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in (SERVICE, *added):
            os.environ.pop(name, None)
        if service is not None:
            os.environ[SERVICE] = service
        _remove_exit_hooks(exit_function, excepthook)


def _remove_exit_hooks(exit_function: object, excepthook: object) -> None:
    """Remove the hooks that W&B 0.31 puts around `sys.exit` and `sys.excepthook` when it starts wandb-core.

    They record the exit status for runs that are never finished, and W&B never removes them. Hooks of other libraries
    and earlier hooks of W&B stay.
    """
    if "wandb.sdk.lib.exit_hooks" not in sys.modules:
        return
    from wandb.sdk.lib.exit_hooks import ExitHooks

    while sys.exit is not exit_function and isinstance(
        hooks := getattr(sys.exit, "__self__", None), ExitHooks
    ):
        sys.exit = hooks._orig_exit  # pyrefly: ignore[protected-access]
    while sys.excepthook is not excepthook and isinstance(
        hooks := getattr(sys.excepthook, "__self__", None), ExitHooks
    ):
        sys.excepthook = hooks._orig_excepthook or sys.__excepthook__  # pyrefly: ignore[protected-access]


def set_up() -> Any:
    """Start wandb-core, if it does not run, and return the SDK's settings and connection."""
    import wandb

    turn_off_extras()
    return wandb.setup()


@cache
def turn_off_extras() -> None:
    """Let the SDK send nothing about its own use and errors, and import less, for the rest of this process.

    Otherwise its start, also offline, imports requests to send that, which takes a twentieth of a second. And where
    wandb-core cannot start, its report of that waits forever for a lock that its caller holds. It also imports W&B
    Launch, in half a second, to look for inputs, which only a user of Launch has. Written against W&B 0.31 in November
    2026.
    """
    with contextlib.suppress(ImportError, AttributeError):  # of another version
        importlib.import_module("wandb.analytics.opentelemetry.opentelemetry_proxy").disable()
        run_class = importlib.import_module("wandb.sdk.wandb_run").Run
        find_inputs: Callable[[Any], None] = run_class._detect_and_apply_job_inputs

        def find_staged_inputs(run: Any) -> None:
            if "wandb.sdk.launch" in sys.modules:
                find_inputs(run)

        run_class._detect_and_apply_job_inputs = find_staged_inputs


def stop_core() -> None:
    """Stop wandb-core, so that the next run starts a new one. Never raises: the SDK exits where wandb-core has died."""
    with contextlib.suppress(Exception, SystemExit):
        import wandb

        wandb.teardown()


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
            # Those of the working folder choose the server, which receives the API key, and the account.
            file = Path(settings.settings_workspace)
            if file.exists() and "WANDB_DIR" not in os.environ and not working_project().is_trusted:
                message = f"{file} chooses a server or an account, and this folder is not trusted"
                raise NoAccessError(f"{message}; remove it, or if it is your project, run: hydrant trust")
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
        if error is None:
            return answers[0] or {}
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, NoAccessError | ssl.SSLCertVerificationError):
            raise reason
        raise NoAccessError(f"{self.base_url} cannot be reached ({first_line(error)})") from error

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
        check_type(row, dict[str, Any])
        check_type(row.get("time"), float | None)
    except (KeyError, TypeError, ValueError) as error:  # of a certificate too
        message = f"the server does not tell the last row of {path} ({first_line(error)})"
        raise NoAccessError(message) from error
    return row


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
                with paused_gc():
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

    @contextlib.contextmanager
    def opened(self, *, fail_fast: bool = False) -> Generator[SdkSession]:
        """Let the SDK start a quiet wandb-core of this process, and leave the process unchanged afterwards.

        Blocks may overlap and end in any order: the first one changes the process, the last one undoes that.

        Args:
            fail_fast: let a query to a failing server end within half a minute instead of hours.
        """
        is_warm = self._warming is not None
        self._join()
        if not (self.num_open or is_warm):
            self._changes.enter_context(changed_process(fail_fast=fail_fast))
        self.num_open += 1
        try:
            yield self
        finally:
            self.num_open -= 1
            if not self.num_open:
                self._close()

    def _close(self) -> None:
        self._problems.clear()
        self._changes.close()


_session = SdkSession()
sdk_session, warm_sdk = _session.opened, _session.warm

MAX_NAME = 128  # characters that W&B accepts for a project, run, group or job type
MAX_TAG = 64

VARIABLES = {"project": "WANDB_PROJECT", "group": "WANDB_RUN_GROUP", "job_type": "WANDB_JOB_TYPE",
             "name": "WANDB_NAME", "tags": "WANDB_TAGS", "notes": "WANDB_NOTES"}  # fmt: skip
"""Key -> W&B's own variable for it, which counts where the key is left at null."""


def names_of(settings: Mapping[str, Any], identity: RunIdentity) -> dict[str, Any]:
    """Return what a W&B run is called: by its settings, else by W&B's variables, else by the run's identity, cut.

    Log, in one line, which variables do not count. The run's own keys `tags` and `notes` count before a variable.

    Args:
        settings: the keys of the tracker that have a variable.

    Raises:
        ConfigError: W&B rejects a name that is no default.
    """
    defaults = {"project": "hydrant"} | vars(identity)
    names, overruled = dict[str, Any](), list[str]()
    for key, variable in VARIABLES.items():
        value: Any = settings[key]
        source = f"tracker.{key}"
        text = os.environ.get(variable)
        is_of_run = value is None and key in ("tags", "notes") and identity.config.get(key)
        if text and (value is not None or is_of_run):
            overruled.append(f"{variable} ({key if is_of_run else source} is set)")
        elif text:
            value, source = text.split(",") if key == "tags" else text, variable
        fit = _cut if value is None else partial(_checked, source)
        value = defaults[key] if value is None else value
        if key == "tags":
            names[key] = [fit(tag, MAX_TAG) for tag in value if tag]
        else:
            names[key] = value if key == "notes" else fit(value, MAX_NAME)
    if overruled:
        log.info("W&B: these variables do not count: %s", ", ".join(overruled))
    return names


def files_folder(folder: Path) -> Path:
    """Return where W&B keeps the files of a run: in its folder, or in WANDB_DIR.

    `wandb agent` sets WANDB_DIR to W&B's default, the working folder, which nobody has chosen.
    """
    chosen = Path(os.environ.get("WANDB_DIR") or ".").resolve()
    return folder.resolve() if chosen == Path.cwd() else chosen


def _checked(key: str, value: str, limit: int) -> str:
    """Return a configured name as text, because YAML reads some names as numbers."""
    text = str(value)
    refused = set("/\\#?%:") if key.lower().endswith("project") else set[str]()
    if not 1 <= len(text) <= limit or refused.intersection(text):
        remedy = f"give 1 to {limit} characters, in the name of a project none of / \\ # ? % :"
        raise ConfigError(key, f"W&B does not accept {text!r}", remedy=remedy)
    return text


def _cut(text: str, limit: int) -> str:
    """Cut a name to the limit. A hash of the whole name keeps different names different."""
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return text if len(text) <= limit else f"{text[: limit - 9]}~{digest[:8]}"
