const [url] = process.argv.slice(2);
require("./local.cjs")(url);
const twilio = require("twilio");

twilio("AC1", "token").messages.create({ to: "+4912345", from: "+4954321", body: "hello" });
