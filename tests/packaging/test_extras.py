"""Each extra, installed with nothing else, is enough for the first example of its page."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gnsq_like.testing import RunningNsqd, running_nsqd, running_nsqlookupd
from tests.support.built import environment_of, run
from tests.support.pages import page, replaced, section
from tests.support.s3 import serving_s3

#: Spark is 450 MB, which a busy machine takes minutes to install.
pytestmark = [pytest.mark.package, pytest.mark.timeout(1500)]

#: What each program begins with, as the module ``page``.
BEGINNING = '''
import atexit, json, re, shlex, subprocess, time
from pathlib import Path
from urllib.request import urlopen

#: The blocks of the pages.
examples = json.loads(Path("examples.json").read_text())
example = examples[0] if examples else ""

class Service:
    """A command that runs until the program ends."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        atexit.register(self.end)

    def until(self, pattern):
        """The first group of the pattern, in what it prints."""
        printed = ""
        for line in self.process.stdout:
            printed += line
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(printed)

    def end(self):
        self.process.terminate()
        self.process.communicate()

def until(condition):
    while not condition():
        time.sleep(0.05)

def publish(topic, body):
    urlopen(f"http://127.0.0.1:4151/pub?topic={topic}", body.encode()).close()

def taken(topic):
    """Whether its channel has taken what was published."""
    [found] = json.load(urlopen("http://127.0.0.1:4151/stats?format=json&topic=" + topic))["topics"]
    return [each["depth"] + each["in_flight_count"] for each in found["channels"]] == [0]
'''


@dataclass(frozen=True)
class Example:
    """A program, with what it needs.

    :param sections: where the ``examples`` are: see ``block``
    :param topic: where something is published
    :param others: packages besides the extra's, which the page names
    """

    program: str
    sections: tuple[str, ...] = ()
    topic: str = ""
    others: tuple[str, ...] = ()


TO_FILE = """
command = re.search("gnsq-like to-file --topic-pattern.*\\n.*", example)[0].replace("\\\\\\n", "")
publish("web_clicks", "/home")
archiving = Service(command.replace("/var/spool/nsq", "work")CHANGES)
until(lambda: taken("web_clicks"))
archiving.end()
"""

SPARK = """
import os
from pyspark.sql import SparkSession
from gnsq_like.spark.pipeline.session import make_home
os.environ["SPARK_HOME"] = make_home(Path("spark").absolute())  # its Pythons start soon, on a busy machine as well
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
exec(re.search("nsqds = .*", example)[0])
path, checkpoint, staging = "table", "checkpoint", STAGING
publish("clicks", "/home")
exec(examples[1])
query.awaitTermination()
assert spark.read.parquet(path).count() == 1
"""

PIPELINE = """
example = example.replace("/srv/clicks", str(Path("clicks").absolute()))
Path("pipeline.toml").write_text('format = "FORMAT"\\n' + example)
publish("clicks", json.dumps({"user": "ada", "page": "/home"}))
subprocess.run([*"gnsq-like pipeline run --config pipeline.toml --available-now".split()], check=True)
"""

EXAMPLES = {
    "cli": Example("subprocess.run(['gnsq-like', 'demo', '--messages', '200'], check=True)"),
    "flask": Example(
        """
        exec(example)
        assert create_app().test_client().post("/click", data={"button": "red"}).status_code == 204
        """,
        ("web.rst Flask",),
        topic="clicks",
    ),
    "flask,gunicorn": Example(
        """
        Path("shop.py").write_text(example)
        Path("gunicorn.conf.py").write_text(examples[1])
        shop = Service("gunicorn -k gevent --bind 127.0.0.1:0 'shop:create_app()'")
        address = shop.until("Listening at: (\\\\S+)")
        urlopen(f"{address}/click", b"button=red").close()
        shop.until("(red)")
        """,
        ("web.rst Flask", "web.rst gunicorn"),
        topic="clicks",
    ),
    "flask,sqlalchemy": Example(
        """
        from collections import namedtuple
        from flask import Flask
        exec(example)
        class Order(db.Model):
            id, item = db.Column(db.Integer, primary_key=True), db.Column(db.String)
            customer = db.Column(db.PickleType)
        Customer = namedtuple("Customer", "id")
        app = Flask("shop")
        app.config.update(SQLALCHEMY_DATABASE_URI="sqlite:///shop.db", NSQ_NSQD_TCP_ADDRESSES="127.0.0.1:4150")
        db.init_app(app)
        nsq.init_app(app)
        with app.app_context():
            db.create_all()
            place_with_flask(Customer(7), "tea")
        done = app.test_cli_runner().invoke(args=["nsq", "relay", "--once"])
        assert done.exit_code == 0, done.output
        """,
        ("outbox.rst Flask and SQLAlchemy",),
        topic="orders",
        others=("flask-sqlalchemy",),
    ),
    "django": Example(
        """
        import django
        from django.conf import settings
        exec(example)
        settings.configure(INSTALLED_APPS=INSTALLED_APPS[1:], NSQ=NSQ)
        django.setup()
        from gnsq_like.contrib.django import publish
        publish("clicks", {"button": "red"})
        """,
        ("django.rst",),
        topic="clicks",
    ),
    "django + django-health-check": Example(
        """
        import django
        from django.conf import settings
        from django.test import Client
        settings.configure(
            INSTALLED_APPS=["gnsq_like.contrib.django"],
            NSQ={"NSQD_TCP_ADDRESSES": "127.0.0.1:4150"},
            ROOT_URLCONF=__name__,
            ALLOWED_HOSTS=["testserver"],
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}},
        )
        django.setup()
        exec(example)
        found = Client().get("/health/", headers={"accept": "application/json"})
        assert found.status_code == 200, found.content
        assert "NSQ" in found.content.decode(), found.content
        """,
        ("web.rst Health#2",),
    ),
    "django + django-tasks": Example(
        """
        import django
        from django.conf import settings
        from django.core.management import call_command
        exec(example)
        settings.configure(
            INSTALLED_APPS=INSTALLED_APPS[1:],
            TASKS=TASKS,
            NSQ={"NSQD_TCP_ADDRESSES": "127.0.0.1:4150"},
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}},
        )
        django.setup()
        call_command("migrate")
        exec(examples[1] if django.VERSION >= (6,) else examples[1].replace("django.tasks", "django_tasks"))
        thank.enqueue(7)
        call_command("nsq_relay", once=True)
        """,
        ("tasks.rst", "tasks.rst#2"),
        topic="tasks.mail",
    ),
    "prometheus": Example(
        """
        from wsgiref.util import setup_testing_defaults
        from gnsq_like import Producer, Reader
        def NSQ(metrics):
            "Flask's, which is not there."
        handler, producer, environ = print, Producer("127.0.0.1:4150"), {}
        exec(example)
        setup_testing_defaults(environ)
        assert b"nsq_reader_max_in_flight_messages" in b"".join(metrics.wsgi_app()(environ, print))
        """,
        ("web.rst Metrics",),
    ),
    "otel": Example(
        """
        exec(example)
        producer.publish("orders", {"order": 7})
        producer.close()
        """,
        ("tracing.rst",),
        topic="orders",
    ),
    "cli + zstandard": Example(
        TO_FILE.replace("CHANGES", '.replace("s3://bucket/nsq", "files")')
        + "assert list(Path('files').glob('web_clicks*.zst'))",
        ("tools.rst to-file",),
    ),
    "cli + s3fs": Example(
        "import fsspec\nstore = fsspec.filesystem('s3')\nstore.mkdir('bucket')\n"
        + TO_FILE.replace("CHANGES", '.replace("--zstd", "--gzip")')
        + "assert len(store.find('bucket/nsq')) == 1",
        ("tools.rst to-file",),
    ),
    " + msgpack": Example(
        "from gnsq_like import Producer\nexec(example.replace('json', 'msgpack'))\nproducer.close()",
        ("producer.rst Bodies",),
        topic="clicks",
    ),
    "admin": Example(
        """
        for command in re.findall("gnsq-like admin [^#\\n]*", example):
            address = Service(f"{command} --http-address 127.0.0.1:0").until("listening on (.*)")
            assert b"Topics" in urlopen(f"http://{address}/").read()
        """,
        ("admin.rst",),
    ),
}
#: Those that install Spark; with GNSQ_LIKE_EXTRAS=all they are tested, too.
ON_SPARK = {
    "spark": Example(
        SPARK.replace("STAGING", "str(Path('stage').absolute())"), ("spark.rst", "spark.rst Reading a stream")
    ),
    "spark + s3fs": Example(
        "import fsspec\nfsspec.filesystem('s3').mkdir('stage')\n" + SPARK.replace("STAGING", "'s3://stage/clicks'"),
        ("spark.rst", "spark.rst Reading a stream"),
    ),
    "pipeline": Example("subprocess.run([*example.split()[1:], '--seconds', '5'], check=True)", ("pipeline.rst",)),
    "delta": Example(
        PIPELINE.replace("FORMAT", "delta")
        + "from deltalake import DeltaTable\nassert DeltaTable('clicks/data').to_pyarrow_table().num_rows == 1",
        ("pipeline.rst#2",),
    ),
    "iceberg": Example(
        PIPELINE.replace("FORMAT", "iceberg")
        + """
from pyiceberg.catalog import load_catalog
catalog = load_catalog("nsq", type="sql", uri="sqlite:///clicks/catalog.db")
[name] = catalog.list_tables("nsq")
assert catalog.load_table(name).scan().to_arrow().num_rows == 1
""",
        ("pipeline.rst#2",),
    ),
    "all": Example("import gnsq_like.spark, flask, django\nsubprocess.run(['gnsq-like', '--version'], check=True)"),
}
if os.environ.get("GNSQ_LIKE_EXTRAS") == "all":
    EXAMPLES |= ON_SPARK


def block(name: str) -> str:
    """The first block of "PAGE.rst" or "PAGE.rst SECTION"; of "PAGE.rst#2", the second."""
    name, _, number = name.partition("#")
    file, _, title = name.partition(" ")
    text = section(page(file), title) if title else page(file)
    found = re.findall(r"^(?:\.\. code-block:: \w+|.*::)\n\n((?:    .*\n|\n)+)", text, re.MULTILINE)
    return textwrap.dedent(found[int(number or 1) - 1])


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[tuple[RunningNsqd, dict[str, str]]]:
    """An nsqd, and the addresses that those on pages mean."""
    with running_nsqlookupd() as lookupd, running_nsqd(lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd:
        yield (
            nsqd,
            {
                "127.0.0.1:4150": nsqd.tcp_address,
                "127.0.0.1:4151": nsqd.http_address,
                "127.0.0.1:4161": lookupd.http_address,
            },
        )


@pytest.mark.parametrize("installed", EXAMPLES)
def test_an_extra_alone_is_enough_for_its_example(
    installed: str, wheel: Path, tmp_path: Path, daemons: tuple[RunningNsqd, dict[str, str]]
) -> None:
    """Or with the package that the page names beside it."""
    example = EXAMPLES[installed]
    extra, *packages = installed.split(" + ")
    nsqd, addresses = daemons
    commands = environment_of(f"{wheel}[{extra}]", tmp_path, *packages, *example.others)
    examples = json.dumps([block(name) for name in example.sections])
    program = "from page import *\n" + textwrap.dedent(example.program)
    for name, text in (("examples.json", examples), ("page.py", BEGINNING), ("program.py", program)):
        (tmp_path / name).write_text(replaced(text, addresses))
    with serving_s3() as s3:
        run(commands / "python", "program.py", cwd=tmp_path, more=s3)
    assert not example.topic or nsqd.topics()[example.topic].messages == 1
