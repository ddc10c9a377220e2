// An MCP server with a tool that pays, and clients that call it through a proxy. Both are the SDK's own code.
//
// It prints the server's port. The server answers with JSON at /json and with events at /events. Then each line of the input
// is a command, which prints one line:
//   connect CLIENT URL            begins a new session
//   pay CLIENT KEY AMOUNT WAY     calls the tool: its result, or "error STATUS" and the message. WAY "ask": the tool asks the
//                                 client's user; "cut": the server's connection ends after the tool has run; "plain": neither
//   session CLIENT                whether client and server mean the session that the client has begun
//   runs KEY                      how often the tool ran
//   asked                         how often a client's user was asked
const { randomUUID } = require("node:crypto");
const http = require("node:http");
const readline = require("node:readline");
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js");
const { StreamableHTTPServerTransport } = require("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { ElicitRequestSchema, ElicitResultSchema } = require("@modelcontextprotocol/sdk/types.js");
const { z } = require("zod");

const version = { name: "payments", version: "1" };
const sessions = new Map(); // transports by the session's id
const posts = new Map(); // the last response to POST by the session's id
const runs = new Map(); // by key
let asked = 0;

function newServer() {
  const server = new McpServer(version);
  const inputSchema = { amount: z.number(), way: z.string(), meta: z.looseObject({}).optional() };
  server.registerTool("pay", { inputSchema }, async ({ amount, way, meta }, { sessionId, sendNotification, sendRequest, _meta }) => {
    const key = (meta ?? _meta)["idempotency-key"];
    runs.set(key, (runs.get(key) ?? 0) + 1);
    const { progressToken } = _meta;
    await sendNotification({ method: "notifications/progress", params: { progressToken, progress: 1 } });
    if (way === "ask") {
      const params = { message: "Pay?", requestedSchema: { type: "object", properties: {} } };
      await sendRequest({ method: "elicitation/create", params }, ElicitResultSchema);
    }
    if (way === "cut") {
      posts.get(sessionId).destroy();
    }
    return { content: [{ type: "text", text: `paid ${amount}, run ${runs.get(key)} of ${key}` }] };
  });
  server.registerTool("session", {}, ({ sessionId }) => ({ content: [{ type: "text", text: sessionId }] }));
  return server;
}

async function serve(request, response) {
  let transport = sessions.get(request.headers["mcp-session-id"]);
  if (!transport) {
    transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => sessions.set(id, transport),
      enableJsonResponse: request.url === "/json",
    });
    await newServer().connect(transport);
  }
  if (request.method === "POST") {
    posts.set(transport.sessionId, response);
  }
  await transport.handleRequest(request, response);
}

const clients = new Map();

async function connect(name, url) {
  await clients.get(name)?.client.close();
  const client = new Client(version, { capabilities: { elicitation: {} } });
  client.setRequestHandler(ElicitRequestSchema, () => {
    asked++;
    return { action: "accept", content: {} };
  });
  const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers: { authorization: "Bearer me" } } });
  await client.connect(transport);
  clients.set(name, { client, transport, session: transport.sessionId, keyed: url.endsWith("/json") ? "arguments" : "_meta" });
  return "connected";
}

async function pay(name, key, amount, way) {
  const { client, keyed } = clients.get(name);
  const call = { name: "pay", arguments: { amount: Number(amount), way } };
  if (keyed === "arguments") {
    call.arguments.meta = { "idempotency-key": key };
  } else {
    call._meta = { "idempotency-key": key };
  }
  // When a stream of events breaks off, the SDK says so and waits on.
  const broken = new AbortController();
  client.onerror = (error) => error.message.startsWith("SSE stream disconnected") && broken.abort(error);
  // For each try, onprogress sends another token.
  const result = await client.callTool(call, undefined, { onprogress() {}, signal: broken.signal });
  return result.content[0].text;
}

async function session(name) {
  const { client, transport, session } = clients.get(name);
  const result = await client.callTool({ name: "session" });
  return transport.sessionId === session && result.content[0].text === session ? "its own" : "another";
}

const commands = { connect, pay, session, runs: async (key) => runs.get(key) ?? 0, asked: async () => asked };

async function main() {
  const server = http.createServer(serve);
  await new Promise((listens) => server.listen(0, "127.0.0.1", listens));
  console.log(server.address().port);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [command, ...args] = line.split(" ");
    const answer = await commands[command](...args).catch((error) => `error ${error.code} ${error.message}`);
    console.log(String(answer).replaceAll("\n", " "));
  }
  process.exit();
}

main();
