// Uploads a file with Node's fetch and FormData, and prints the status and the idempotency-status.
//
// upload.js URL HOST KEY FILE
const fs = require('node:fs');

const [url, host, key, file] = process.argv.slice(2);
const form = new FormData();
form.append('amount', '100');
form.append('document', new Blob([fs.readFileSync(file)], { type: 'application/octet-stream' }), 'document.bin');
fetch(url, { method: 'POST', headers: { 'x-forwarded-host': host, 'idempotency-key': key }, body: form }).then(async (answer) => {
  await answer.arrayBuffer();
  console.log(answer.status, answer.headers.get('idempotency-status') ?? '');
});
