"""Texts."""

from django.db import models


class Text(models.Model):
    """A text, and the number of its words when they are counted."""

    text = models.TextField(blank=True)
    words = models.IntegerField(null=True)

    def __str__(self) -> str:
        return self.text[:50]
