"""Wrong usage of each command is said in words, with status 2, before anything is asked or connected."""

from __future__ import annotations

import re
import shlex

import pytest
from click.testing import CliRunner

from gnsq_like.cli.app import app
from tests.support.tools import NOBODY

#: Words of the lines below: an address at which nothing listens, and flags with it.
WORDS = {
    "NOBODY": NOBODY,
    "TCP": f"--nsqd-tcp-address={NOBODY}",
    "HTTP": f"--nsqd-http-address={NOBODY}",
    "LOOKUPD": f"--lookupd-http-address={NOBODY}",
}
#: What is wrong, by the command line.
WRONG = {
    "nsqadmim": "No such command 'nsqadmim'",
    "admin": "--nsqd-http-address or --lookupd-http-address required",
    "admin --nsqd-http-address=h:1 --lookupd-http-address=h:2": "not both",
    "admin --nsqd-http-address=nonsense": "invalid address",
    "admin --cluster east": "NAME=",
    "admin --nsqd-http-address=h:1 --password-file=/nowhere": "password_file",
    "admin --nsqd-http-address=h:1 --http-client-request-timeout=soon": "soon",
    "cluster --nsqds 0": "--nsqds",
    "cluster --nsqd-port 65534": "the ports of that many daemons end above 65535",
    "cluster --nsqds 6 --nsqd-port 4150 --lookupd-port 4160": "overlap",
    "demo --messages 0": "--messages",
    "demo --nsqds none": "--nsqds",
    "demo --body-bytes 3": "--body-bytes",
    "demo --speed 9": "--speed",
    "channel list clicks": "--nsqd-http-address or --lookupd-http-address required",
    "channel pause clicks HTTP": "Missing argument 'CHANNEL'",
    "channel pause clicks ? HTTP": "invalid channel name",
    "dlq list HTTP": "Missing argument 'TOPIC'",
    "dlq list ? HTTP": "invalid topic name",
    "dlq list orders.dead --reason=( HTTP": "reason",
    "dlq list orders.dead --count=0 HTTP": "count",
    "dlq replay orders.dead HTTP": "give IDs, or --all",
    "dlq replay orders.dead --all 1 HTTP": "give IDs, or --all",
    "dlq replay orders.dead --all --to=? HTTP": "invalid topic name",
    "dlq drop orders.dead --yes HTTP": "give IDs, or --all",
    "dlq replay orders.dead --al HTTP": "--al",
    "dlq replay orders.dead --all --sample-rate=5 HTTP": "--sample-rate",
    "nodes": "--nsqd-http-address or --lookupd-http-address required",
    "ping": "--nsqd-http-address or --lookupd-http-address required",
    "lookup clicks": "--lookupd-http-address required",
    "lookup clicks HTTP": "--nsqd-http-address",
    "lookup ? LOOKUPD": "invalid topic name",
    "node tombstone nowhere clicks LOOKUPD": "host:port",
    "node tombstone a:1 LOOKUPD": "Missing argument 'TOPIC'",
    "ping --jsom LOOKUPD": "--jsom",
    "run": "Missing argument",
    "run shop --json": "--json is for --check",
    "run shop --processes=0": "Invalid value for '--processes'",
    "run shop --max-memory=much": "--max-memory=much: it must be a size such as 300M or 1.5G",
    "run shop --health=127.0.0.1": "--health=127.0.0.1: it must be host:port",
    "run shop --app-dir=missing": "Invalid value for '--app-dir'",
    "pub --topic=t": "--nsqd-tcp-address or --lookupd-http-address required",
    "pub TCP": "--topic or --topic-field required",
    "pub --topic=t TCP --delimiter=": "must not be empty",
    "pub --topic=t --nsqd-tcp-address=nowhere:": "nowhere",
    "pub --topic=t TCP --snappy --deflate": "snappy",
    "pub --topic=t TCP --rte=1": "--rate",
    "stat --topic=clicks HTTP": "--topic and --channel are required",
    "stat --topic=? --channel=archive HTTP": "invalid topic name",
    "stat --topic=clicks --channel=archive --interval=0 HTTP": "it must be above 0",
    "stat --topic=clicks --channel=archive --count=0 HTTP": "count",
    "stat --topic=clicks --channel=archive --intervall=1s HTTP": "--intervall",
    "tail TCP": "--topic required",
    "tail --topic=t": "--nsqd-tcp-address or --lookupd-http-address required",
    "tail --topic=t TCP --grep=(": "--grep",
    "tail t TCP --format={bdy}": "the fields are topic, channel, id",
    "tail t TCP --format={}": "the fields are topic",
    "tail t TCP --format={body:{attempts}}": "the fields are topic",
    "tail t TCP --format={attempts:s}": "Unknown format code 's'",
    "tail t TCP --format={body": "expected '}'",
    "tail t TCP --format={body} --json": "use --format or --json not both",
    "tail t --lookupd=a --nsqd=b": "use --nsqd-tcp-address or --lookupd-http-address not both",
    "stat clicks archive more HTTP": "unexpected extra argument",
    "pub t m": "-d HOST or -l HOST",
    "tail --topic=? TCP --create": "invalid topic name",
    "tail --topic=t -nsqd-tcp-adress=x": "--nsqd-tcp-address",
    "to-file TCP": "--topic or --topic-pattern required",
    "to-file --topic-pattern=x TCP": "--lookupd-http-address must be specified when no --topic specified",
    "to-file --topic=t --gzip --zstd TCP": "use --gzip or --zstd not both",
    "to-file --topic=t --gzip-level=10 TCP": "10 is not in the range 1<=x<=9",
    "to-file --topic=t --gzip --filename-format=x TCP": "<REV> is missing",
    "to-file --topic=t --output-dir=s3://bucket/x TCP": "--work-dir",
    "to-file --topic=t --consumer-opt=max_attempt,1 TCP": "max_attempts",
    "to-file --topic=t --rotate-interval=5 TCP": "duration",
    "to-http --topic=t TCP": "--get or --post required",
    "to-http --get=http://h/%s --post=http://h --topic=t TCP": "use --get or --post not both",
    "to-http --get=http://h/%s --content-type=text/plain --topic=t TCP": "--content-type only used with --post",
    "to-http --get=http://h/ --topic=t TCP": "%s must be in it once",
    "to-http --post=nowhere --topic=t TCP": "URL with http or https",
    "to-http --post=http://h --header=x --topic=t TCP": "'Name: value'",
    "to-http --post=http://h --sample=1.5 --topic=t TCP": "--sample",
    "to-http --post=http://h --mode=any --topic=t TCP": "--mode",
    "to-http --post=https://h --http-client-tls-root-ca-file=/nowhere --topic=t TCP": "No such file",
    "to-nsq --topic=t TCP": "--destination-nsqd-tcp-address required",
    "to-nsq --destination-nsqd-tcp-address=NOBODY TCP": "--topic required",
    "to-nsq --topic=t --destination-nsqd-tcp-address=NOBODY --mode=all TCP": "'all' is not one of",
    "to-nsq --topic=t --destination-nsqd-tcp-address=x TCP": "invalid address 'x'",
    "to-nsq --topic=? --destination-nsqd-tcp-address=NOBODY TCP": "invalid topic name",
    "to-nsq --topic=t --destination-nsqd-tcp-address=NOBODY --destination-topic=? TCP": "invalid topic name",
    "topic list": "--nsqd-http-address or --lookupd-http-address required",
    "topic list --nsqd-http-address=a:1 --lookupd-http-address=b:1": "not both",
    "topic list --nsqd-http-address=nowhere:": "nowhere",
    "topic show ? HTTP": "invalid topic name",
    "topic show HTTP": "Missing argument 'TOPIC'",
    "topic drop x": "No such command 'drop'",
    "topic list --jsom": "--jsom",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_usage(line: str) -> None:
    arguments = shlex.split(re.sub(r"\b(?:NOBODY|TCP|HTTP|LOOKUPD)\b", lambda word: WORDS[word[0]], line))
    done = CliRunner().invoke(app, arguments, prog_name="gnsq-like")
    assert done.exit_code == 2, done.output
    assert WRONG[line] in done.output
