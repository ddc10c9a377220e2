"""Works Oncegate's jobs until Ctrl-C, as the program in Go beside it does.

python3 worker.py [URL [FOLDER]]

URL is the manager's, FOLDER takes the mails. The client of release 0.1.0: pip install ./oncegate-0.1.0-py3-none-any.whl
"""

import json
import sys
from pathlib import Path

from oncegate import Client, Permanent, Worker


def send(folder):
    def handler(job, context):
        """Write one file for each job, however often the job is delivered and wherever a delivery ended."""
        mail = folder / f"{job.id}.json"
        unfinished = mail.with_suffix(f".{job.attempt}")
        unfinished.write_text(json.dumps(job.payload))
        unfinished.replace(mail)
        return mail.name

    return handler


def double(job, context):
    if not isinstance(job.payload, (int, float)):
        raise Permanent("payload: must be a number")  # no attempt will accept it
    return 2 * job.payload


def flaky(job, context):
    failures = job.payload["failures"]
    if job.attempt <= failures:
        raise RuntimeError(f"failure {job.attempt} of {failures}")  # the manager tries the job again
    return "at last"


def main(url="http://127.0.0.1:8090", folder="outbox"):
    Path(folder).mkdir(exist_ok=True)
    handlers = {"mail.send": send(Path(folder)), "math.double": double, "demo.flaky": flaky}
    with Client(url) as client:
        Worker(client, handlers, concurrency=4).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
