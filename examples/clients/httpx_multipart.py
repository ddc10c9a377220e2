import sys

import httpx

client = httpx.Client(transport=httpx.HTTPTransport(retries=3), headers={"authorization": "Bearer t"})
key = {"idempotency-key": sys.argv[2]} if sys.argv[2:] else {}
client.post(sys.argv[1] + "/upload", files={"file": ("a.txt", b"hello")}, headers=key)
