"""A topic as an HTTP stream, as NSQ's nsq_pubsub gives it: each message is a line, for curl or a browser.

Run:  python examples/pubsub.py 127.0.0.1:4161 [port]          an nsqlookupd
      curl -N 'http://127.0.0.1:8080/sub?topic=clicks'                    what is published from now on
      curl -N 'http://127.0.0.1:8080/sub?topic=clicks&channel=archive'    shared by all who name the channel

A message is finished when it is written. A slow client holds ten at most, and one that leaves gives them back.
"""

import sys
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import gevent
from gevent.server import StreamServer

from gnsq_like import Reader, errors


def answer(client, status, text=""):
    client.sendall(f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n{text}".encode())


def stop_when_left(client, reader):
    with suppress(OSError):
        client.recv(1)  # it has nothing more to say
    reader.stop(timeout=0)


def serve(lookupd, client, address):
    with suppress(OSError), client, client.makefile("rb") as request:
        method, target, *_ = request.readline(65536).decode("latin-1").split(" ")
        while request.readline(65536).strip():
            pass  # a header
        query = parse_qs(urlsplit(target).query)
        if method != "GET" or not target.startswith("/sub?") or "topic" not in query:
            return answer(client, "404 Not Found", "GET /sub?topic=TOPIC[&channel=CHANNEL]\n")
        channel = query.get("channel", [f"{uuid4().hex}#ephemeral"])[0]
        try:
            reader = Reader(query["topic"][0], channel, lookupd_http_addresses=[lookupd], max_in_flight=10)
        except errors.NSQError as exc:  # a name that a topic or channel cannot have
            return answer(client, "400 Bad Request", f"{exc}\n")
        with reader:
            gevent.spawn(stop_when_left, client, reader)
            answer(client, "200 OK")
            for message in reader:
                with message:
                    try:
                        client.sendall(message.body + b"\n")
                    except OSError:  # it has left: another may have the message at once
                        message.requeue(delay=0, backoff=False)


if __name__ == "__main__":
    server = StreamServer(("127.0.0.1", int([8080, *sys.argv[2:]][-1])), lambda *peer: serve(sys.argv[1], *peer))
    server.start()
    print(f"Listening on http://127.0.0.1:{server.server_port}/sub", flush=True)
    server.serve_forever()
