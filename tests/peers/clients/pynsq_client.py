"""pynsq; see test_peers.py for its arguments and its task."""

import ssl
import sys

import nsq
import tornado.ioloop

role, address, topic, features, ca_file, count = sys.argv[1:]
options: dict[str, object] = {feature: True for feature in features.split("+") if feature != "plain"}
if "tls_v1" in options:
    options["tls_options"] = {"ca_certs": ca_file, "cert_reqs": ssl.CERT_REQUIRED}


async def publish():
    for number in range(int(count)):
        done = tornado.ioloop.IOLoop.current().asyncio_loop.create_future()
        writer.pub(topic, b"%d" % number, lambda conn, data, done=done: done.set_result(data))
        if (answer := await done) != b"OK":
            sys.exit(f"not published: {answer!r}")
    print("published", flush=True)
    tornado.ioloop.IOLoop.current().stop()


def publish_when_connected():
    if writer.conns:
        tornado.ioloop.IOLoop.current().add_callback(publish)
    else:
        tornado.ioloop.IOLoop.current().call_later(0.05, publish_when_connected)


def handle(message):
    print(message.body.decode(), message.attempts, flush=True)
    if message.body == b"0" and message.attempts == 1:
        message.requeue(delay=0, backoff=False)
        return None
    return True


if role == "publish":
    writer = nsq.Writer([address], **options)
    # Connected is one thing, the upgrades are another: pynsq itself queues no publish.
    tornado.ioloop.IOLoop.current().call_later(1.0, publish_when_connected)
else:
    nsq.Reader(
        message_handler=handle,
        nsqd_tcp_addresses=[address],
        topic=topic,
        channel="channel",
        max_in_flight=10,
        **options,
    )
nsq.run()
