import sys

import requests
import urllib3

session = requests.Session()
retry = urllib3.Retry(3, status_forcelist=[409, 429, 500, 503], allowed_methods=None, backoff_factor=0.1)
session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
session.headers["authorization"] = "Bearer t"
key = {"idempotency-key": sys.argv[2]} if sys.argv[2:] else {}
session.post(sys.argv[1] + "/upload", files={"file": ("a.txt", b"hello")}, headers=key)
