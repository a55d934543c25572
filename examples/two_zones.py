"""Two zones with an nsqd and a Reader each: how many messages cross from one zone to the other.

    python examples/two_zones.py

A Reader connects to all nsqds. It says where it is, and an nsqd with topology-aware-consumption sends it messages of
another zone only when no Reader of that zone is ready.
"""

import gevent

from gnsq_like import Message, Producer, Reader
from gnsq_like.server import Nsqd

COUNT = 100


def is_ready(reader: Reader) -> bool:
    connections = reader.stats()["connections"].values()
    return len(connections) == 2 and all(each["rdy"] for each in connections)


def crossings(*experiments: str) -> int:
    """How many of the messages published in both zones are handled in the other one."""
    nsqds = {
        zone: Nsqd(
            tcp_address="127.0.0.1:0",
            http_address="",
            topology_region="eu",
            topology_zone=zone,
            enable_experiment=experiments,
        )
        for zone in ("eu-1", "eu-2")
    }
    handled = []

    def reader(zone: str) -> Reader:
        def handle(message: Message) -> None:
            handled.append(message.nsqd_address == nsqds[zone].tcp_address)

        return Reader(
            "clicks",
            "archive",
            handle,
            nsqd_tcp_addresses=[nsqd.tcp_address for nsqd in nsqds.values()],
            topology_region="eu",
            topology_zone=zone,
            max_in_flight=20,
        )

    for nsqd in nsqds.values():
        nsqd.start()
    readers = [reader(zone) for zone in nsqds]
    producers = [Producer(nsqd.tcp_address) for nsqd in nsqds.values()]
    for each in readers:
        each.start()
    while not all(is_ready(each) for each in readers):
        gevent.sleep(0.01)
    for number in range(COUNT):
        for producer in producers:
            producer.publish("clicks", b"%d" % number)
        while len(handled) < (number + 1) * len(nsqds):  # so that each Reader is ready for the next one
            gevent.sleep(0.001)
    for each in (*readers, *nsqds.values()):
        each.stop()
    for producer in producers:
        producer.close()
    return handled.count(False)


for experiments in ((), ("topology-aware-consumption",)):
    found = crossings(*experiments)
    print(f"{', '.join(experiments) or 'as usual'}: {found} of {2 * COUNT} messages crossed zones", flush=True)
