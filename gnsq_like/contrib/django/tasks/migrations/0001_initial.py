from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies: ClassVar[list[tuple[str, str]]] = []

    operations = [
        migrations.CreateModel(
            name="TaskRecord",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("module_path", models.TextField()),
                ("backend", models.CharField(max_length=100)),
                ("queue_name", models.CharField(max_length=100)),
                ("run_after", models.DateTimeField(blank=True, null=True)),
                ("args", models.JSONField(default=list)),
                ("kwargs", models.JSONField(default=dict)),
                ("status", models.CharField(max_length=10)),
                ("enqueued_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                ("last_attempted_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                ("errors", models.JSONField(default=list)),
                ("worker_ids", models.JSONField(default=list)),
                ("return_value", models.JSONField(blank=True, null=True)),
            ],
            options={
                "verbose_name": "task",
                "indexes": [models.Index(fields=["status", "finished_at"], name="nsq_tasks_status")],
            },
        ),
    ]
