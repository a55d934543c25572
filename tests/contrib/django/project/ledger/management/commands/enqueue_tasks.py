"""Enqueues tasks, and notes the id of each."""

from django.core.management.base import BaseCommand

from tests.contrib.django.tasks.tasks_app import noting
from tests.support.notes import note


class Command(BaseCommand):
    def add_arguments(self, parser):
        parser.add_argument("name")
        parser.add_argument("count", type=int)

    def handle(self, *, name, count, **_):
        for number in range(count):
            task = f"{name}.{number}"
            note("enqueued", f"{noting.enqueue(task).id} {task}")
