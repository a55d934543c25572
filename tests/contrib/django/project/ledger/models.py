from django.db import models


class Line(models.Model):
    """One line of the ledger: who wrote it, and about which name."""

    writer = models.CharField(max_length=20)
    name = models.CharField(max_length=60)

    def __str__(self) -> str:
        return f"{self.writer} {self.name}"
