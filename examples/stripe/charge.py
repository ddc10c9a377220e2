"""Pays once with stripe-python as it comes, although its patience is shorter than the work takes.

    make run           # in another terminal
    make build/python  # stripe-python, into build/python
    PYTHONPATH=build/python python3 examples/stripe/charge.py http://127.0.0.1:10000

The library gives up after a second and tries again by itself, up to four times, each time with the Idempotency-Key that it
made for the first try. The work takes 2.5 seconds. The gate lets it continue, and a try that is there when it ends gets its answer.
"""

import logging
import sys

import stripe


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: charge.py URL-OF-THE-GATE", file=sys.stderr)
        return 2
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("stripe").setLevel(logging.INFO)

    client = stripe.StripeClient(
        "sk_test_oncegate",
        base_addresses={"api": sys.argv[1]},
        http_client=stripe.RequestsClient(timeout=1),
        max_network_retries=4,
    )
    payment = client.v1.payment_intents.create(
        {"amount": 100, "currency": "eur"},
        # What makes the demo's upstream slow.
        {"headers": {"x-demo-delay-ms": "2500"}},
    )
    replayed = payment.last_response.headers.get("idempotent-replayed") == "true"
    print(payment.id, payment.amount, payment.currency, "replayed" if replayed else "executed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
