from typing import ClassVar

from django.db import migrations, models
from django.utils import timezone


class Migration(migrations.Migration):
    initial = True

    dependencies: ClassVar[list[tuple[str, str]]] = []

    operations = [
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("topic", models.CharField(max_length=64)),
                ("key", models.CharField(blank=True, default="", max_length=200)),
                ("sequence", models.BigIntegerField(blank=True, null=True)),
                ("shard", models.PositiveSmallIntegerField()),
                ("body", models.BinaryField()),
                ("created_at", models.DateTimeField(default=timezone.now)),
                ("due_at", models.DateTimeField(blank=True, null=True)),
                ("published_at", models.DateTimeField(blank=True, null=True)),
                ("refused", models.TextField(blank=True, null=True)),
            ],
            options={
                "verbose_name": "message",
                "indexes": [
                    models.Index(
                        condition=models.Q(("published_at", None)),
                        fields=["shard", "id"],
                        name="nsq_outbox_unpublished",
                    ),
                    models.Index(
                        condition=models.Q(("published_at", None), ("due_at__isnull", False)),
                        fields=["due_at"],
                        name="nsq_outbox_due",
                    ),
                    models.Index(
                        condition=models.Q(("published_at__isnull", False)),
                        fields=["published_at"],
                        name="nsq_outbox_published",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OutboxSequence",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("topic", models.CharField(max_length=64)),
                ("key", models.CharField(max_length=200)),
                ("last", models.BigIntegerField(default=0)),
            ],
            options={
                "verbose_name": "sequence",
                "constraints": [models.UniqueConstraint(fields=("topic", "key"), name="nsq_outbox_sequence")],
            },
        ),
    ]
