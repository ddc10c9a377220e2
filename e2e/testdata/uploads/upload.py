"""Uploads a file with requests or httpx, and prints the status and the idempotency-status.

upload.py LIBRARY URL HOST KEY FILE
"""

import importlib
import sys

library, url, host, key, file = sys.argv[1:]
client = importlib.import_module(library)
with open(file, "rb") as f:
    answer = client.post(url, headers={"host": host, "idempotency-key": key}, data={"amount": "100"},
                         files={"document": ("document.bin", f, "application/octet-stream")}, timeout=300)
print(answer.status_code, answer.headers.get("idempotency-status", ""))
