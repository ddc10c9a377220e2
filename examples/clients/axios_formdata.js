const axios = require("axios");
const axiosRetry = require("axios-retry").default;

const [url, key] = process.argv.slice(2);
axiosRetry(axios, { retries: 3, retryCondition: () => true });
const form = new FormData();
form.append("file", new Blob(["hello"]), "a.txt");
axios.post(url + "/upload", form, { headers: { authorization: "Bearer t", ...(key && { "idempotency-key": key }) } });
