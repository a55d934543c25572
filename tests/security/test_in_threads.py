"""TLS and a codec in processes of their own: patched before, patched after the import, not patched at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.certificates import write_ca, write_certificate
from tests.support.daemons import KINDS, Kind, running_nsqd
from tests.support.scripts import run_script

IMPORT = "from gnsq_like import Producer, Reader\n"
PATCH = "import warnings; warnings.simplefilter('error')\nfrom gevent import monkey; monkey.patch_all()\n"
PLACES = {
    "not patched": IMPORT,
    "patched": PATCH + IMPORT,
    "patched after the import": IMPORT + "import sys\nassert 'ssl' not in sys.modules\n" + PATCH,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_tls_and_a_codec(kind: Kind, place: str, tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    with running_nsqd(kind, tls_cert=cert, tls_key=key) as nsqd:
        lines = run_script(
            PLACES[place]
            + """
import sys, threading
options = {"tls_v1": True, "tls_root_ca_file": sys.argv[2], "snappy": True}
producer = Producer(sys.argv[1], **options)
threads = [threading.Thread(target=producer.publish, args=("t", b"x" * 50_000)) for _ in range(5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
seen = []

def handler(message):
    seen.append(len(message.body))
    if len(seen) == 5:
        reader.stop()

reader = Reader("t", "c", handler, nsqd_tcp_addresses=sys.argv[1], max_in_flight=5, **options)
reader.run()
print(seen, producer.close())
""",
            nsqd.tcp_address,
            write_ca(tmp_path),
        )
    assert lines == ["[50000, 50000, 50000, 50000, 50000] True"]
