"""Submit a job once, work it, and run work of one's own once, with nothing but Python's urllib.

    python3 once.py URL KEY

URL is the manager's. The token of ONCEGATE_TOKEN is sent if it is set.
"""
import base64
import http.client
import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request

BASE = sys.argv[1]
ATTEMPTS = 10


def call(method, path, body=None, key=None):
    """Make a call until it has an answer. Returns status, headers and the parsed body.

    A lost answer says nothing about the work, so the same request goes again: the same key, the same bytes. 409
    `request-pending` means that the first attempt is still running. 429 and 503 name a time to wait. An answer of a
    proxy on the way may not be JSON."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Idempotency-Key"] = key
    if token := os.environ.get("ONCEGATE_TOKEN"):
        headers["Authorization"] = "Bearer " + token
    for attempt in range(ATTEMPTS):
        request = urllib.request.Request(BASE + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.headers, json.load(answer)
        except urllib.error.HTTPError as error:
            try:
                problem = json.load(error)
            except ValueError:
                problem = {}
            if error.code not in (429, 502, 503, 504) and problem.get("code") != "request-pending":
                return error.code, error.headers, problem
            wait = float(error.headers.get("Retry-After", 0.1 * 2**attempt))
        except (OSError, http.client.HTTPException, ValueError):  # refused, reset, timed out, cut short
            wait = 0.1 * 2**attempt
        time.sleep(min(wait, 5))
    sys.exit(f"{method} {path}: no answer after {ATTEMPTS} attempts")


def submit(key):
    """Submit a job. However often it is sent, there is one job."""
    status, headers, job = call("POST", "/v1/jobs", {"function": "mail.send", "payload": {"to": "ann"}}, key)
    if status != 202:
        sys.exit(f"submit: {status} {job}")
    print("submitted, replayed:", headers.get("Idempotent-Replayed", "false"))
    return job["id"]


def work(job_id):
    """Claim a job, do it, and say so. The lease's token proves that no other worker has it now."""
    _, _, claimed = call("POST", "/v1/jobs/claim", {"functions": ["mail.send"], "worker": "example", "wait_ms": 10000})
    for job in claimed["jobs"]:
        assert job["id"] == job_id, job
        finish = {"lease_token": job["lease"]["token"], "status": "complete", "result": {"sent": job["payload"]["to"]}}
        call("POST", f"/v1/jobs/{job['id']}/finish", finish)
    _, _, job = call("GET", f"/v1/jobs/{job_id}")
    print("job:", job["state"], "attempt", job["attempt"])


def once(key):
    """Run work of one's own once: reserve the key, do the work, record what came of it."""
    token = secrets.token_hex(16)  # one for this attempt
    request = {"key": key, "scope": "shop/payments", "token": token, "fingerprint": "amount=100", "wait_ms": 10000}
    status, _, entry = call("POST", "/v1/ledger/reserve", request)
    if entry.get("state") == "reserved":
        answer = {"paid": 100}  # the work
        result = {"status": 201, "headers": [["content-type", "application/json"]],
                  "body": base64.b64encode(json.dumps(answer, separators=(",", ":")).encode()).decode()}
        status, _, reply = call("POST", "/v1/ledger/commit", {"key": key, "scope": "shop/payments", "token": token, "result": result})
        if status != 200:  # another attempt has taken the key, for example
            sys.exit(f"it ran, and its outcome is not recorded: {status} {reply}")
        print("executed:", json.dumps(answer, separators=(",", ":")))
    elif entry.get("state") == "committed":
        print("replayed:", base64.b64decode(entry["result"]["body"]).decode())
    else:  # another attempt runs, or its outcome is unknown: do not run it
        print("not run:", status, entry.get("code") or entry.get("state"))


job = submit(sys.argv[2])
assert submit(sys.argv[2]) == job
work(job)
once(sys.argv[2])
once(sys.argv[2])
