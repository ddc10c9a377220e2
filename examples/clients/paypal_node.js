const [url, key] = process.argv.slice(2);
require("./local.cjs")(url);
const { Client, OrdersController } = require("@paypal/paypal-server-sdk");

const client = new Client({ clientCredentialsAuthCredentials: { oAuthClientId: "i", oAuthClientSecret: "s" } });
const order = { intent: "CAPTURE", purchaseUnits: [{ amount: { currencyCode: "EUR", value: "1.00" } }] };
new OrdersController(client).createOrder({ body: order, paypalRequestId: key });
