const { Resend } = require("resend");

const [url, key] = process.argv.slice(2);
const email = { from: "a@example.com", to: "b@example.com", subject: "s", text: "t" };
new Resend("re_1", { baseUrl: url }).emails.send(email, { idempotencyKey: key });
