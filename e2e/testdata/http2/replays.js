// Repeats requests over HTTP/2 with Node's client, and prints what is lost. See e2e/http2_test.go.
const http2 = require("node:http2");

const [url, key, count, declared, list] = process.argv.slice(2);
const sizes = list.split(",").map(Number);
const kinds = [[201, "application/json", ""], [422, "text/html", ""], [400, "application/json", "x".repeat(300)]];
const { origin, pathname } = new URL(url);
const session = http2.connect(origin);

function send(size, type, suffix) {
  return new Promise((resolve, reject) => {
    const body = Buffer.from("{}".padEnd(size));
    const headers = {
      ":method": "POST", ":path": pathname, ":authority": "payments.test",
      "idempotency-key": `${key}-${size}${suffix}`, "content-type": type,
    };
    if (declared === "declared") headers["content-length"] = body.length;
    const stream = session.request(headers);
    let status = 0;
    stream.on("response", (h) => { status = h[":status"]; });
    stream.on("end", () => resolve(status));
    stream.on("error", reject);
    stream.on("close", () => reject(new Error("closed")));
    stream.resume();
    stream.end(body);
  });
}

let next = 0;

async function work() {
  while (next < Number(count)) {
    const i = next++;
    const [want, type, suffix] = kinds[i % 3];
    const size = sizes[Math.floor(i / 3) % sizes.length];
    try {
      const status = await send(size, type, suffix);
      if (status !== want) console.log(`${size} bytes: ${status} instead of ${want}`);
    } catch (e) {
      console.log(`${size} bytes, ${want}: ${e}`);
    }
  }
}

async function main() {
  for (const size of sizes) {
    const status = await send(size, "application/json", "");
    if (status !== 201) throw new Error(`status ${status}`);
  }
  await Promise.all(Array.from({ length: 8 }, work));
  session.close();
}

main();
