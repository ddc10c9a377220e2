import sys

import stripe

client = stripe.StripeClient("sk_test_1", base_addresses={"api": sys.argv[1]}, max_network_retries=2)
options = {"idempotency_key": sys.argv[2]} if sys.argv[2:] else {}
client.v1.payment_intents.create({"amount": 100, "currency": "eur"}, options)
