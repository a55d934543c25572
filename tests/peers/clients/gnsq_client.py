"""gnsq; see test_peers.py for its arguments and its task."""

import sys

import gnsq

role, address, topic, features, ca_file, count = sys.argv[1:]
options: dict[str, object] = {feature: True for feature in features.split("+") if feature != "plain"}
if "tls_v1" in options:
    options["tls_options"] = {"ca_certs": ca_file}

if role == "publish":
    # Not its Producer: that fails at the OK of any upgrade, with a KeyError of its own.
    host, port = address.split(":")
    connection = gnsq.NsqdTCPClient(host, int(port), **options)
    connection.connect()
    connection.identify()
    for number in range(int(count)):
        connection.publish(topic, b"%d" % number)
        frame, answer = connection.read_response()
        if answer != b"OK":
            sys.exit(f"not published: {answer!r}")
    print("published", flush=True)
else:

    def handle(consumer, message):
        print(message.body.decode(), message.attempts, flush=True)
        if message.body == b"0" and message.attempts == 1:
            message.requeue(0, backoff=False)
        else:
            message.finish()

    gnsq.Consumer(topic, "channel", address, message_handler=handle, max_in_flight=10, **options).start()
