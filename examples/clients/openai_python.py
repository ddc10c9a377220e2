import sys

import openai

client = openai.OpenAI(api_key="k", base_url=sys.argv[1] + "/v1")
headers = {"idempotency-key": sys.argv[2]} if sys.argv[2:] else {}
client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}], extra_headers=headers)
