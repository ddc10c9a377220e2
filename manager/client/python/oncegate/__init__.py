"""Talks to Oncegate's manager: submits jobs at most once, waits for results, and runs workers.

submit, submit_batch and submit_wait use the caller's idempotency key, or draw one (see Keys). They repeat the call with that key
until it has an answer. After a lost connection, a timeout or an overloaded manager it is unknown whether the first attempt got
through; with the same key that does not matter: the manager, or the gate in front of it, executes the submission once and gives
every attempt the first answer.

OutcomeUnknown says that the first attempt may have been executed and that its outcome is unknown. The client does not repeat the
call. The caller must find out what happened, and must not submit again under another key.

Module oncegate.worker says how handlers' ends are reported.
"""

from ._errors import (
    AttemptTimeout,
    BadAnswer,
    Conflict,
    DuplicateKey,
    Fenced,
    FingerprintMismatch,
    InvalidRequest,
    JobCancelled,
    JobEnded,
    LeaseLost,
    ManagerError,
    NoAnswer,
    NotFound,
    OncegateError,
    OutcomeUnknown,
    Permanent,
    RetryAfter,
    StopTimeout,
    TooLarge,
    Unauthorized,
    Unavailable,
    WorkerStopping,
)
from ._keys import Keys
from ._schedules import FunctionInfo, FunctionPage, FunctionRates, Limits, Rate, Schedule, SchedulePage, ScheduleSpec
from ._types import Answer, AttemptError, Batch, BatchInfo, Beat, Dedup, Event, EventJob, Job, Lease, ListQuery, Page, Reservation, Sent, Submission, Submitted
from .aio import AsyncClient
from .client import Client
from .worker import AsyncHandler, AsyncWorker, Context, Handler, Worker

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncHandler",
    "AsyncWorker",
    "AttemptError",
    "AttemptTimeout",
    "BadAnswer",
    "Beat",
    "Client",
    "Conflict",
    "Context",
    "Dedup",
    "DuplicateKey",
    "Event",
    "EventJob",
    "Fenced",
    "FingerprintMismatch",
    "FunctionInfo",
    "FunctionPage",
    "FunctionRates",
    "Handler",
    "InvalidRequest",
    "Job",
    "JobCancelled",
    "JobEnded",
    "Keys",
    "Lease",
    "LeaseLost",
    "Limits",
    "ListQuery",
    "ManagerError",
    "NoAnswer",
    "NotFound",
    "OncegateError",
    "OutcomeUnknown",
    "Page",
    "Permanent",
    "Rate",
    "Reservation",
    "RetryAfter",
    "Batch",
    "BatchInfo",
    "Schedule",
    "SchedulePage",
    "ScheduleSpec",
    "Sent",
    "StopTimeout",
    "Submission",
    "Submitted",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "Worker",
    "WorkerStopping",
]
