const { SquareClient } = require("square");

const [url, key] = process.argv.slice(2);
const payment = { sourceId: "cnon:card-nonce-ok", idempotencyKey: key, amountMoney: { amount: 100n, currency: "EUR" } };
new SquareClient({ token: "t", baseUrl: url }).payments.create(payment); // the library demands a key
