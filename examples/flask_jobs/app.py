"""A page that takes texts, and a job of Dramatiq that counts the words of each."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import dramatiq
from flask import Flask, jsonify, request

from gnsq_like.contrib.dramatiq import NSQBroker

DATABASE = os.environ.get("TEXTS_DATABASE", Path(__file__).with_name("texts.sqlite3"))

dramatiq.set_broker(NSQBroker(nsqd_tcp_addresses=os.environ.get("NSQD", "127.0.0.1:4150")))
app = Flask(__name__)


def database() -> closing[sqlite3.Connection]:
    connection = sqlite3.connect(DATABASE, timeout=20, isolation_level=None)
    connection.execute("CREATE TABLE IF NOT EXISTS texts (id INTEGER PRIMARY KEY, text TEXT, words INTEGER)")
    return closing(connection)


@dramatiq.actor(max_retries=2, min_backoff=200, max_backoff=1000)
def count(number: int) -> None:
    """Runs at least once, so it must not matter if it runs twice."""
    with database() as db:
        [text] = db.execute("SELECT text FROM texts WHERE id = ?", [number]).fetchone()
        if not text:
            raise ValueError("an empty text")
        db.execute("UPDATE texts SET words = ? WHERE id = ?", [len(text.split()), number])


@app.post("/")
def add() -> tuple[str, int]:
    with database() as db:
        number = db.execute("INSERT INTO texts (text) VALUES (?)", [request.form["text"]]).lastrowid
    assert number is not None
    count.send(number)
    return "", 202


@app.get("/")
def index():
    with database() as db:
        return jsonify([{"text": text, "words": words} for text, words in db.execute("SELECT text, words FROM texts")])
