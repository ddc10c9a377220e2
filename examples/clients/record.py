"""Shows what client libraries change between the tries of one request.

    make clients            # installs the libraries into build/clients, and prints the table
    python3 examples/clients/record.py [--gate] [NAME...]

Each script in this folder makes one call with its library, of the URL in its first argument. This program is the server: it
spoils the first answer, records what comes, and compares the further tries, which the library makes by itself, with the first. Then
the script runs twice with one key, as an application that starts again. With --gate the tries go through the
gate with the configuration of gate.json, and the table says what it did with the further ones.
"""

import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parent.parent / "build"
LANGUAGES = {".py": [sys.executable], ".js": ["node"], ".java": ["java", "-XX:TieredStopAtLevel=1", "-cp", BUILD / "clients/java/*"]}
TROUBLES = ["no answer", "409", "429", "500", "503"]
# What scripts ask for before they make their call.
PREPARATIONS = {"/v1/oauth2/token": {"access_token": "t", "token_type": "Bearer", "expires_in": 3600},
                "/v1/config": {"defaults": {}, "overrides": {}, "idempotency-key-lifetime": "PT30M"}}
KEY_NAMES = re.compile(r"idempotency|request-?(id|token)$|invocation-id", re.I)
PATIENCE = 60 # seconds, for one run of a script and for one answer


class Try:
    """A request as it came."""

    def __init__(self, stream, connection):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = stream.readline()
            if not line:
                raise EOFError
            head += line
        self.line, *fields = head.decode("latin-1").rstrip().split("\r\n")
        self.fields = [field.split(": ", 1) if ": " in field else [field.rstrip(":"), ""] for field in fields]
        self.headers = {name.lower(): value for name, value in self.fields}
        if "expect" in self.headers:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self.headers.get("transfer-encoding") == "chunked":
            self.body = b""
            while size := int(stream.readline().split(b";")[0], 16):
                self.body += stream.read(size)
                stream.readline()
            while stream.readline().strip():
                pass
        else:
            self.body = stream.read(int(self.headers.get("content-length", 0)))
        self.second = int(time.time())

    def await_next_second(self):
        """What is dated in seconds then has another date in the next try."""
        while int(time.time()) == self.second:
            time.sleep(0.01)

    def members(self):
        """The body's members, if it is a JSON object."""
        try:
            body = json.loads(self.body)
        except ValueError:
            return {}
        return body if isinstance(body, dict) else {}

    def key(self):
        """Where the key is, and what it is."""
        for where, parts in (("json:", self.members()), ("", self.headers)):
            for name, value in parts.items():
                if KEY_NAMES.search(name):
                    return where + name, value
        return "none", None

    def send(self, address):
        """Sends the same request to another server and returns the answer."""
        connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
        method, target, _ = self.line.split(" ")
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in self.fields:
            if name.lower() not in ("connection", "expect", "transfer-encoding", "content-length"):
                connection.putheader(name, value)
        connection.putheader("content-length", str(len(self.body)))
        connection.endheaders(self.body)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer


class Server(socketserver.ThreadingTCPServer):
    """Records what libraries send, and spoils the first answer. With a gate it has the gate's answers too."""

    daemon_threads = allow_reuse_address = True

    def __init__(self, trouble=None, gate=None):
        super().__init__(("127.0.0.1", 0), Connection)
        self.trouble, self.gate, self.tries, self.answers = trouble, gate, [], []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass # a client that went away


class Connection(socketserver.StreamRequestHandler):
    def handle(self):
        server = self.server
        request = Try(self.rfile, self.connection)
        path = request.line.split(" ")[1].split("?")[0]
        if path in PREPARATIONS:
            return self.answer("200 OK", json.dumps(PREPARATIONS[path]))
        server.tries.append(request)
        if server.gate:
            server.answers.append(request.send(server.gate))
        if len(server.tries) == 1 and server.trouble:
            request.await_next_second()
        if len(server.tries) > 1 or not server.trouble:
            self.answer("200 OK", "" if request.line.startswith("PUT") else "{}")
        elif server.trouble != "no answer":
            self.answer(server.trouble + " Trouble\r\nretry-after: 0", "{}")

    def answer(self, status, body):
        self.wfile.write(f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n"
                         f"content-length: {len(body)}\r\n\r\n{body}".encode())


def run(script, trouble, gate, key, times=1):
    """Runs a script against a server, and returns the server. That the script fails is no matter: an application would see that."""
    with Server(trouble, gate) as server:
        command = [*LANGUAGES[script.suffix], script, f"http://127.0.0.1:{server.server_address[1]}"]
        env = {**os.environ, "PYTHONPATH": f"{BUILD}/clients/python{os.pathsep}{BUILD}/python", # the second for the test
               "NODE_PATH": f"{BUILD}/clients/node_modules", "PYTHONDONTWRITEBYTECODE": "1", "NO_PROXY": "*"}
        for _ in range(times):
            if server.tries:
                server.tries[0].await_next_second()
            done = subprocess.run(command + [key][:bool(key)], env=env, capture_output=True, text=True, timeout=PATIENCE)
        server.shutdown()
    if key and len(server.tries) < times:
        sys.exit(f"{script.name} made no call:\n{done.stdout}{done.stderr}")
    return server


def differences(first, other):
    """The headers and the part of the body that differ."""
    headers = sorted(name for name in first.headers.keys() | other.headers.keys() if first.headers.get(name) != other.headers.get(name))
    a, b = first.body, other.body
    if a == b:
        return headers, "same"
    if changed := [name for name in first.members() if first.members()[name] != other.members().get(name)]:
        return headers, "json: " + ", ".join(changed)
    boundary = [re.search(r'boundary="?([^";]+)', t.headers.get("content-type", "")) for t in (first, other)]
    if all(boundary) and a.replace(boundary[0][1].encode(), b"") == b.replace(boundary[1][1].encode(), b""):
        return headers, "boundary"
    return headers, "other bytes"


def row(name, when, whose, pairs, answers):
    """A row of the table. Each pair is a first try and one after it."""
    changes = [differences(*pair) for pair in pairs]
    place = pairs[0][0].key()[0]
    if place != "none":
        place += f" of the {whose}, " + ("same" if all(a.key() == b.key() for a, b in pairs) else "new")
    headers = sorted({header for changed, _ in changes for header in changed})
    cells = [name, when, place, ", ".join(headers) or "none", ", ".join(sorted({body for _, body in changes}))]
    if answers:
        cells.append(", ".join(sorted({verdict(a) for a in answers})))
    print("| " + " | ".join(cells) + " |", flush=True)


def verdict(answer):
    """What the gate did with a further try."""
    if answer.headers.get("idempotent-replayed"):
        return "replayed"
    return "ran again" if answer.status == 200 else f"{answer.status}"


def measure(script, gate):
    """Prints a script's rows: the library's own retries, if it makes any, and the application that starts again."""
    probe = run(script, None, gate, None)
    whose = "library" if probe.tries and probe.tries[0].key()[1] else "application"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        servers = list(pool.map(lambda trouble: run(script, trouble, gate, None if whose == "library" else str(uuid.uuid4())), TROUBLES))
    repeated = [server for server in servers if len(server.tries) > 1]
    if repeated:
        row(script.name, "its own after " + ", ".join(server.trouble for server in repeated), whose,
            [(server.tries[0], t) for server in repeated for t in server.tries[1:]], [a for server in repeated for a in server.answers[1:]])
    key = str(uuid.uuid4())
    server = run(script, None, gate, key, times=2)
    whose = "application" if key == server.tries[0].key()[1] else "library"
    row(script.name, "started again", whose, [(server.tries[0], server.tries[-1])], server.answers[1:])


def start_gate(service):
    """Starts the gate before a service, and returns its process and address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    process = subprocess.Popen([BUILD / "gateway", "--wasm", BUILD / "oncegate.wasm", "--config", HERE / "gate.json", "--workers", "1", "--log-level", "ERROR",
                                "--allow-on-headers-stop-iteration", "--listen", "%s:%d" % address, "--upstream", "%s:%d" % service])
    for _ in range(600):
        try:
            connection = http.client.HTTPConnection(*address, timeout=1)
            connection.request("GET", "/")
            connection.getresponse()
            return process, address
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.1)
    process.kill()
    sys.exit("the gate did not start")


def main():
    names = [name for name in sys.argv[1:] if name != "--gate"]
    scripts = sorted(f for f in HERE.iterdir() if f.suffix in LANGUAGES and f.name != "record.py" and (not names or f.name in names))
    process = gate = None
    titles = ["client", "further tries", "key", "headers that change", "body"]
    if "--gate" in sys.argv:
        process, gate = start_gate(Server().server_address)
        titles.append("a retry at the gate")
    try:
        print("| " + " | ".join(titles) + " |\n|" + "---|" * len(titles))
        for script in scripts:
            measure(script, gate)
    finally:
        if process:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
