"""How a handler ended, in the form of a report."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import dataclass
from typing import Any, Optional

from ._core import encode
from ._errors import JobEnded, OncegateError, Permanent, RetryAfter, find_cause

_MAX_RESULT = 1 << 20  # the manager's bound
_MAX_ERROR = 32 << 10  # longer texts are cut

#: Begins the text of a success that becomes a failure.
NOT_REPORTABLE = "the work is done, but its result cannot be reported"


@dataclass
class Outcome:
    """What is reported of a handler's end."""

    result: Optional[bytes] = None  # JSON; None for none
    failure: str = ""  # empty for a success
    done: bool = False  # the work is done, so it must not run again, although there is a failure
    permanent: bool = False  # another attempt would not help
    after: Optional[float] = None  # seconds until the next attempt; None leaves that to the manager

    @staticmethod
    def of_result(value: Any) -> Outcome:
        """The outcome of a handler that returned."""
        if value is None:
            return Outcome()
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            return Outcome.of_error(TypeError("the handler is no coroutine function, but returned an awaitable: nothing was done"))
        try:
            text = encode(value)
        except BaseException as e:  # whatever the code of the value raises is this job's failure
            return Outcome(failure=cut(f"{NOT_REPORTABLE}: {e}"), done=True)
        if len(text) > _MAX_RESULT:
            return Outcome(failure=f"{NOT_REPORTABLE}: {len(text)} bytes, at most {_MAX_RESULT} are kept", done=True)
        return Outcome(result=text)

    @staticmethod
    def of_error(error: BaseException) -> Outcome:
        """The outcome of a handler that raised an error."""
        again = find_cause(error, RetryAfter)
        permanent = find_cause(error, Permanent)
        o = Outcome(permanent=permanent is not None)
        if isinstance(again, RetryAfter):
            o.after = again.seconds
        name = type(error).__name__
        try:
            text = str(error) or f"{name}, an error without a text"
            if not isinstance(error, (Permanent, RetryAfter, JobEnded)):
                text = text if text.startswith(name) else f"{name}: {text}"
                if not isinstance(error, OncegateError):
                    text += "\n" + "".join(traceback.format_tb(error.__traceback__))
        except BaseException as e:
            text = f"{name}, whose text cannot be had: {type(e).__name__}"
        o.failure = cut(text)
        return o


def cut(text: str) -> str:
    """Bound a reported text and make it valid. It is never empty: an empty one would be a success."""
    b = text.encode("utf-8", "replace")
    return b[:_MAX_ERROR].decode("utf-8", "ignore") or "an error without a text"
