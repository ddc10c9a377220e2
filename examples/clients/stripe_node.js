const Stripe = require("stripe");

const [url, key] = process.argv.slice(2);
const at = new URL(url);
const stripe = new Stripe("sk_test_1", { protocol: "http", host: at.hostname, port: at.port });
stripe.paymentIntents.create({ amount: 100, currency: "eur" }, key ? { idempotencyKey: key } : {});
