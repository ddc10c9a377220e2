import sys

import square

client = square.Square(token="t", base_url=sys.argv[1])
key = sys.argv[2] # the library demands one
client.payments.create(source_id="cnon:card-nonce-ok", idempotency_key=key, amount_money={"amount": 100, "currency": "EUR"})
