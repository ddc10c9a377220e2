import sys

import Adyen

adyen = Adyen.Adyen(xapikey="k", platform="test")
adyen.checkout.payments_api.baseUrl = sys.argv[1] + "/v71"
payment = {"amount": {"value": 100, "currency": "EUR"}, "reference": "order-17", "merchantAccount": "m",
           "paymentMethod": {"type": "scheme"}, "returnUrl": "https://example.com"}
adyen.checkout.payments_api.payments(payment, idempotency_key=sys.argv[2] if sys.argv[2:] else None)
