import sys

from paypalserversdk.configuration import Configuration
from paypalserversdk.http.auth.o_auth_2 import ClientCredentialsAuthCredentials
from paypalserversdk.paypal_serversdk_client import PaypalServersdkClient


class Local(Configuration):
    """Has the test's server in place of the sandbox."""

    def get_base_uri(self, *_, **__):
        return sys.argv[1]


credentials = ClientCredentialsAuthCredentials(o_auth_client_id="i", o_auth_client_secret="s")
client = PaypalServersdkClient(config=Local(client_credentials_auth_credentials=credentials))
order = {"body": {"intent": "CAPTURE", "purchase_units": [{"amount": {"currency_code": "EUR", "value": "1.00"}}]}}
client.orders.create_order({**order, "paypal_request_id": sys.argv[2] if sys.argv[2:] else None})
