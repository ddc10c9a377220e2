import sys

import anthropic

client = anthropic.Anthropic(api_key="k", base_url=sys.argv[1])
headers = {"idempotency-key": sys.argv[2]} if sys.argv[2:] else {}
client.messages.create(model="m", max_tokens=10, messages=[{"role": "user", "content": "hello"}], extra_headers=headers)
