const [url, key] = process.argv.slice(2);
require("./local.cjs")(url);
const { CheckoutAPI, Client, EnvironmentEnum } = require("@adyen/api-library");

const checkout = new CheckoutAPI(new Client({ apiKey: "k", environment: EnvironmentEnum.TEST }));
const payment = {
  amount: { value: 100, currency: "EUR" },
  reference: "order-17",
  merchantAccount: "m",
  paymentMethod: { type: "scheme" },
  returnUrl: "https://example.com",
};
checkout.PaymentsApi.payments(payment, key ? { idempotencyKey: key } : {});
