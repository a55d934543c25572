"""A Flask application with an outbox, and what places orders in it; tests set the rest in the environment."""

from __future__ import annotations

import os
import random

import click
from flask import Flask
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, event, insert
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from gnsq_like.contrib.flask import NSQ
from gnsq_like.contrib.flask.outbox import Outbox
from tests.support.notes import note

#: How many keys there are.
KEYS = 12

metadata = MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("name", String(60)))
engine = create_engine(os.environ["DATABASE"])
session: scoped_session[Session] = scoped_session(sessionmaker(engine))
nsq = NSQ()
outbox = Outbox(nsq, metadata, session)

if engine.dialect.name == "sqlite":

    @event.listens_for(engine, "connect")
    def _patient(connection, _):
        connection.execute("PRAGMA busy_timeout = 60000")


def create_app() -> Flask:
    app = Flask(__name__)
    nsq.init_app(app)
    app.register_blueprint(nsq.health_blueprint())

    @app.teardown_appcontext
    def _remove(_):
        session.remove()

    @app.cli.command("make-tables")
    def make_tables():
        metadata.create_all(engine)

    @app.cli.command("place")
    @click.argument("name")
    @click.argument("count", type=int)
    def place(name, count):
        """Each order is a row and a message in a transaction; one in five is rolled back."""
        chance = random.Random(name)
        for number in range(count):
            order = f"{name}.{number}"
            key = f"customer-{chance.randrange(KEYS)}" if chance.random() < 0.8 else None
            session.execute(insert(orders).values(name=order))
            outbox.publish("orders", {"order": order}, key=key, envelope=True)
            if chance.random() < 0.2:
                session.rollback()
            else:
                session.commit()
                note("committed", order)
        note("placed", name)

    return app
