"""An origin in Python: answers with the page that it has for a target, in each way of reading it."""

import posixpath
import re
import unicodedata
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, unquote_plus, urljoin, urlparse, urlsplit


def without_query(target):
    return target.partition("?")[0]


def without_accents(text):
    letters = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def lines(path):
    """As `=~ /^\/account$/` in Ruby: any line will do."""
    found = re.search(r"^/(account|user)$", path, re.MULTILINE)
    return found[0] if found else path


READINGS = {
    "as sent": without_query,
    "urlsplit": lambda target: urlsplit(target).path or "/",
    "urlparse": lambda target: urlparse(target).path or "/",
    "urlparse, decoded": lambda target: unquote(urlparse(target).path) or "/",
    "urlsplit of the decoded target": lambda target: urlsplit(unquote(target)).path or "/",
    "urljoin": lambda target: urlsplit(urljoin("http://shop.test", target)).path or "/",
    # As wsgiref and uvicorn do.
    "WSGI": lambda target: unquote(without_query(target), "iso-8859-1"),
    "ASGI": lambda target: unquote(without_query(target)),
    "http.server": lambda target: posixpath.normpath(unquote(without_query(target).partition("#")[0])),
    "decoded twice": lambda target: posixpath.normpath(unquote(unquote(without_query(target)))),
    "~unquote_plus": lambda target: unquote_plus(without_query(target)),
    "~strip": lambda target: unquote_plus(without_query(target)).strip(),
    "stripped segments": lambda target: "/".join(map(str.strip, unquote(without_query(target)).split("/"))),
    "lines": lambda target: lines(unquote(without_query(target))),
    "~NFC": lambda target: unicodedata.normalize("NFC", unquote(without_query(target))),
    "~NFKC": lambda target: unicodedata.normalize("NFKC", unquote(without_query(target))).casefold(),
    # As the collations of databases compare.
    "~without accents": lambda target: without_accents(unquote(without_query(target))).casefold(),
    "without dots": lambda target: unquote(without_query(target)).replace("..", ""),
    # As Bottle does, on what wsgiref makes of a request line.
    "Bottle": lambda target: unquote(without_query(target.split()[0]), "iso-8859-1").encode("latin1").decode("utf8", "ignore"),
    "one leading slash": lambda target: "/" + without_query(target).lstrip("/"),
}


def page(path):
    if path == "/":
        return "home"
    if path == "/account" or path.startswith("/account/"):
        return "account"
    if path == "/user":
        return "user"
    if path.endswith(".css"):
        return "styles"
    return "static" if f"{path}/".startswith("/static/") else "none"


def shown(name, target):
    try:
        return f"{name}: {page(READINGS[name](target))}"
    except ValueError:
        return f"{name}: error"


class Origin(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self):
        # Newer versions merge the slashes at the beginning of `self.path`.
        target = self.requestline.split(" ")[1]
        body = "\n".join(shown(name, target) for name in READINGS).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Origin)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
