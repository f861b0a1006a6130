"""Receiving the ends of tasks: the signature is verified before anything of the body is believed.

Run:     python examples/webhook_receiver.py 8080 "$(reach task secret)"
Allow:   REACH_OUTWARD_ALLOW=127.0.0.1 reach up    (nothing is sent to addresses inside otherwise)
Submit:  reach submit ledger.reconcile period=2025-03 --callback http://127.0.0.1:8080/
"""

import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

SEEN: set[str] = set()
SECRET = sys.argv[2]


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 to what is genuine and 401 to everything else; one that comes twice changes nothing."""

    def do_POST(self) -> None:
        """Take one in."""
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            event = Webhook(SECRET).verify(body, dict(self.headers.items()))
        except WebhookVerificationError:
            self.send_response(HTTPStatus.UNAUTHORIZED)
        else:
            if event["id"] not in SEEN:
                print(event["type"], event["subject"], event["data"].get("data"), flush=True)
            SEEN.add(event["id"])
            self.send_response(HTTPStatus.NO_CONTENT)
        self.end_headers()


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
