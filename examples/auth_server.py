"""An auth server for nsqd (--auth-http-address): which permissions each secret grants, and for how long.

Run:  python examples/auth_server.py [port]              needs Flask: pip install ".[flask]"
      gnsq-like nsqd --auth-http-address=127.0.0.1:4180  or nsqd of NSQ
      Reader(..., auth_secret="consumer's secret"), Producer(..., auth_secret="producer's secret")
"""

import sys

from flask import Flask, jsonify, request
from werkzeug.serving import WSGIRequestHandler

TTL = 60  # seconds until nsqd asks again, at the client's next publish or subscribe

# Topics and channels are regular expressions. To publish, a channel must match "" as well: ".*" does.
USERS = {
    "producer's secret": ("producer", [{"topic": "^clicks$", "channels": [".*"], "permissions": ["publish"]}]),
    "consumer's secret": (
        "consumer",
        [{"topic": "^(clicks|views)$", "channels": ["^archive$"], "permissions": ["subscribe"]}],
    ),
}

app = Flask(__name__)


@app.route("/auth", methods=["GET", "POST"])
def auth():
    # Other arguments: remote_ip, tls ("true" or "false"), common_name (of the client's certificate). With
    # --auth-http-request-method=post they are in a JSON object in the body, each a list of one text.
    [secret] = request.get_json()["secret"] if request.method == "POST" else request.args.getlist("secret")
    identity, authorizations = USERS.get(secret, ("nobody", []))
    return jsonify(ttl=TTL, identity=identity, identity_url="", authorizations=authorizations)


class Quiet(WSGIRequestHandler):
    def log_request(self, *args):
        """Log nothing, because the URLs contain the secrets; configure any proxy in front in the same way."""


if __name__ == "__main__":
    app.run("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 4180, request_handler=Quiet)
