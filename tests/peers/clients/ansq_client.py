"""ansq; see test_peers.py for its arguments and its task."""

import asyncio
import sys

import ansq

role, address, topic, features, ca_file, count = sys.argv[1:]


async def publish():
    writer = await ansq.create_writer(nsqd_tcp_addresses=[address])
    for number in range(int(count)):
        await writer.pub(topic, f"{number}")
    print("published", flush=True)
    await writer.close()


async def consume():
    reader = await ansq.create_reader(topic=topic, channel="channel", nsqd_tcp_addresses=[address])
    async for message in reader.messages():
        print(message.body.decode(), message.attempts, flush=True)
        if message.body == b"0" and message.attempts == 1:
            await message.req(0)
        else:
            await message.fin()


asyncio.run(publish() if role == "publish" else consume())
