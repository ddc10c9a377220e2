"""What calls and handlers raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Type

if TYPE_CHECKING:
    from ._types import Job


class OncegateError(Exception):
    """The base of all errors of this package."""

    #: Whether the same call may succeed later. A recorded answer is not temporary, nor is the code record-unreadable: an operator
    #: has to act.
    temporary: bool = False
    #: The job as it was submitted, if only the wait for its end failed.
    job: Optional[Job] = None


class NoAnswer(OncegateError):
    """The call had no answer, so it is unknown whether it arrived. The same call with the same key finds out."""

    temporary = True


class BadAnswer(OncegateError):
    """Something answered that is not a manager, or a redirect led nowhere."""


class ManagerError(OncegateError):
    """An answer that is not a success, from the manager or from a proxy on the way to it."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        title: str = "",
        retry_after: float = 0.0,
        replayed: bool = False,
    ) -> None:
        super().__init__(f"manager: {code}: {detail}" if code else f"manager: HTTP status {status}: {detail}")
        #: The HTTP status.
        self.status = status
        #: Names the problem; empty if the answer was not a problem document of the manager.
        self.code = code
        #: Says what is wrong.
        self.detail = detail
        #: The kind of problem in words.
        self.title = title
        #: How many seconds the manager asks the caller to wait; 0 if it does not.
        self.retry_after = retry_after
        #: The answer was recorded for an earlier attempt with the same key. Another attempt would get it again.
        self.replayed = replayed
        # An operator has to act before the manager can read the record.
        self.temporary = not replayed and code != "record-unreadable" and (
            status in (408, 425, 429, 500, 502, 503, 504) or code == "request-pending"
        )


class InvalidRequest(ManagerError):
    """A member is missing, malformed or unknown."""


class Unauthorized(ManagerError):
    """The credentials are missing or wrong, or do not allow this call."""


class NotFound(ManagerError):
    """There is no such job or entry."""


class OutcomeUnknown(ManagerError):
    """The first attempt may have run, and its outcome is not known. The work must not be submitted again under another key."""


class Fenced(ManagerError):
    """The lease or the reservation belongs to another attempt by now."""


class DuplicateKey(ManagerError):
    """A live job holds the job's key."""


class Conflict(ManagerError):
    """The state does not allow this call."""


class FingerprintMismatch(ManagerError):
    """The idempotency key was used for another request."""


class TooLarge(ManagerError):
    """The body or the result is over the manager's limit."""


class Unavailable(ManagerError):
    """The manager, or what it needs, cannot take the call now."""


_BY_CODE: dict[str, Type[ManagerError]] = {
    "invalid-request": InvalidRequest,
    "invalid-key": InvalidRequest,
    "unauthorized": Unauthorized,
    "forbidden": Unauthorized,
    "not-found": NotFound,
    "outcome-unknown": OutcomeUnknown,
    "fenced": Fenced,
    "duplicate-key": DuplicateKey,
    "conflict": Conflict,
    "fingerprint-mismatch": FingerprintMismatch,
    "too-large": TooLarge,
}


def manager_error(
    status: int, code: str, detail: str, *, title: str = "", retry_after: float = 0.0, replayed: bool = False
) -> ManagerError:
    """Make the error of the class that belongs to the code."""
    kind = _BY_CODE.get(code, Unavailable if status == 503 else ManagerError)
    return kind(status, code, detail, title=title, retry_after=retry_after, replayed=replayed)


class JobEnded(OncegateError):
    """Why a worker asks a handler to end."""

    #: The cause in one word.
    cause: str = ""


class JobCancelled(JobEnded):
    """The job was cancelled."""

    cause = "cancelled"

    def __init__(self) -> None:
        super().__init__("the job was cancelled")


class LeaseLost(JobEnded):
    """Another worker has the job, or will get it."""

    cause = "lease-lost"

    def __init__(self) -> None:
        super().__init__("the job's lease is lost")


class AttemptTimeout(JobEnded):
    """The attempt has reached the job's timeout. The manager queues the job again, or fails it."""

    cause = "timeout"

    def __init__(self) -> None:
        super().__init__("the attempt has reached the job's timeout")


class WorkerStopping(JobEnded):
    """The worker is stopping, and its stop_timeout is over."""

    cause = "stopping"

    def __init__(self) -> None:
        super().__init__("the worker is stopping")


class StopTimeout(OncegateError):
    """Handlers did not return before a worker's stop had to end."""


class Permanent(Exception):
    """A handler raises it when another attempt would not help: the job fails even if attempts remain."""


class RetryAfter(Exception):
    """A handler raises it to say when the next attempt begins: after 0 to 366 days, in seconds. Other values become the nearest."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = min(max(0.0, seconds), 366 * 86400.0)


def find_cause(error: BaseException, kind: Type[BaseException]) -> Optional[BaseException]:
    """Return the error of a kind among an error and those that it was raised from."""
    seen: set[int] = set()
    at: Optional[BaseException] = error
    while at is not None and id(at) not in seen:
        if isinstance(at, kind):
            return at
        seen.add(id(at))
        at = at.__cause__
    return None
