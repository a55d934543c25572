"""asyncnsq; see test_peers.py for its arguments and its task."""

import asyncio
import sys

import asyncnsq

role, address, topic, features, ca_file, count = sys.argv[1:]
host, port = address.split(":")
options = {feature: True for feature in features.split("+") if feature != "plain"}


async def publish():
    writer = await asyncnsq.create_writer(host=host, port=int(port), **options)
    for number in range(int(count)):
        await writer.pub(topic, f"{number}".encode())
    print("published", flush=True)


async def consume():
    reader = await asyncnsq.create_reader(nsqd_tcp_addresses=[address], max_in_flight=10, **options)
    await reader.subscribe(topic, "channel")
    async for message in reader.messages():
        print(message.body.decode(), message.attempts, flush=True)
        if message.body == b"0" and message.attempts == 1:
            await message.req(0)
        else:
            await message.fin()


asyncio.run(publish() if role == "publish" else consume())
