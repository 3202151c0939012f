# A server for tests/cli/remote.sh: files by ranges, and every way of doing it wrong. The first part of a path says which.
# usage: range_server.py FOLDER LOG [CERTIFICATE KEY]; prints its port, of https where there is a certificate. LOG gets the number of body
# bytes of each answer.
import http.server, os, re, ssl, sys, time

folder, log = sys.argv[1], open(sys.argv[2], "a", buffering=1)
seen = {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, headers, body=b"", announced=None):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if announced is None else announced))
        self.end_headers()
        self.wfile.write(body)
        log.write("%d %s\n" % (len(body), self.path))

    def do_GET(self):
        mode, _, rest = self.path.lstrip("/").partition("/")
        if mode == "redirect":
            left, _, rest = rest.partition("/")
            to = "/redirect/%d/%s" % (int(left) - 1, rest) if int(left) > 1 else "/ok/" + rest
            return self.answer(302, [("Location", to)], b"elsewhere")
        if mode == "loop":
            return self.answer(302, [("Location", self.path)])
        if mode == "jump":  # jump/SCHEME/PORT/...: to a server elsewhere
            scheme, port, rest = rest.split("/", 2)
            return self.answer(302, [("Location", "%s://localhost:%s/%s" % (scheme, port, rest))])
        if mode == "away":
            return self.answer(302, [("Location", "file:///etc/passwd")])
        if mode in ("forbidden", "broken"):
            return self.answer(403 if mode == "forbidden" else 500, [])
        if mode == "silent":
            time.sleep(20)
            return
        path = os.path.join(folder, rest.split("?")[0])
        if ".." in rest or not os.path.isfile(path):
            return self.answer(404, [])
        size = os.path.getsize(path)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        with open(path, "rb") as f:
            if wanted is None or mode == "plain":
                return self.answer(200, [], f.read())
            first, last = int(wanted[1]), min(int(wanted[2]), size - 1)
            if mode == "pieces":
                last = min(last, first + 4999)
            f.seek(first)
            body = f.read(last - first + 1)
        total, tag, announced = size, '"%d"' % size, None
        n = seen[self.path] = seen.get(self.path, 0) + 1
        if mode == "grows":
            total += n
        if mode == "tags":
            tag = '"%d"' % n
        headers = [("ETag", tag)]
        if mode == "other":
            headers.append(("Content-Range", "bytes %d-%d/%d" % (first + 1, last + 1, size + 1)))
        elif mode == "longer":
            headers.append(("Content-Range", "bytes %d-%d/%d" % (first, last + 1000, size + 1000)))
        elif mode == "absurd":
            headers.append(("Content-Range", "bytes %d-%d/99999999999999999999999" % (first, last)))
        elif mode == "unsaid":
            pass
        elif mode == "huge":
            headers.append(("Content-Range", "bytes %d-%d/%d" % (first, last, 1 << 45)))
        else:
            headers.append(("Content-Range", "bytes %d-%d/%d" % (first, last, total)))
        if mode == "headers":
            headers += [("X-%d" % i, "x" * 1000) for i in range(90)]
        if mode == "short":
            announced, body = len(body), body[: len(body) // 2]
            self.close_connection = True
        if mode == "more":
            body += b"more" * 100
        if mode == "slow":
            self.send_response(206)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            for i in range(15):
                self.wfile.write(body[i : i + 1])
                time.sleep(1)
            self.close_connection = True
            return
        self.answer(206, headers, body, announced)

    def handle(self):
        try:
            super().handle()
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
if len(sys.argv) > 3:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(sys.argv[3], sys.argv[4])
    # The handshake is left to the thread of a connection, so that a client that refuses ends nobody else's.
    server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print(server.server_port, flush=True)
server.serve_forever()
